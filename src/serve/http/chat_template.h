// How the messages of a chat become the text that a model continues.
//
// The template is the model's: a built-in one, named in the model directory's
// generation_config.json ("chat_template") or by the server's option. It never comes from a
// request, and it is no program: a request's text cannot change what it does.
//
//   plain   the message and a line break, as `laplace chat` does it; a reply ends at an empty line
//   chatml  <|im_start|>ROLE\n ... <|im_end|>\n; the marks are special tokens where the tokenizer
//           has them, and then no text of a message can imitate them
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace laplace {

struct ChatMessage {
  std::string role;  // system, developer, user, assistant or tool
  std::string content;
};

class ChatTemplate {
 public:
  // "plain" or "chatml"; throws Error(kBadInput) for any other name.
  ChatTemplate(std::string_view name, const Tokenizer& tokenizer);

  const std::string& name() const { return name_; }
  // The text of one message, complete.
  std::string render(const ChatMessage& message) const;
  // What stands between the messages and the reply.
  std::string begin_reply() const;
  // What stands behind a reply's content: render({"assistant", x}) is begin_reply() + x + this.
  std::string end_reply() const;
  // Texts that end a reply.
  std::vector<std::string> stops() const;
  // Tokens that end a reply.
  std::vector<TokenId> stop_ids() const;

  // Ids of one rendered piece: marks become their special tokens when `marks` says that the piece
  // holds them as marks. Content is encoded without.
  std::vector<TokenId> encode_message(const ChatMessage& message) const;
  std::vector<TokenId> encode_marks(std::string_view text) const;
  // As encode_marks, of a message that is the next to be said.
  std::vector<TokenId> encode_begin_reply() const { return encode_marks(begin_reply()); }

 private:
  bool chatml() const { return name_ == "chatml"; }

  std::string name_;
  Tokenizer tokenizer_;
  TokenId start_ = -1;  // of <|im_start|>, when both marks are special tokens
  TokenId end_ = -1;
};

}  // namespace laplace
