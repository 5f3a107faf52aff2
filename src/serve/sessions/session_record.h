// What is kept of a session: the state of its sequence and where its conversation stands. Its size
// does not depend on the length of the conversation, and no text of it is kept.
//
// As bytes (a file, or a value in Redis), little-endian:
//   "LPLSESS1" | u64 n | n bytes of JSON | slot float32 | logits float32 [V]
//   | counts: n times (int32 id, uint32 in the prompt, uint32 times in the output) | u64 XXH64
// where XXH64 is over everything before it. All lengths are in the JSON and are checked against the
// model and the size before anything is used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "serve/engine/snapshot.h"

namespace laplace {

struct SessionInfo {
  std::string name;
  std::string version;   // random, new at each save: tells copies apart
  int64_t position = 0;  // tokens fed
  int64_t turns = 0;     // replies
  int64_t created = 0;   // Unix time, seconds
  int64_t updated = 0;
  int64_t bytes = 0;  // as stored

  // As GET /v1/sessions shows it.
  Json to_json() const;
};

struct SessionRecord {
  SessionInfo info;
  std::string form;      // "text", or "chat:" and the template's name
  std::string pending;   // text that belongs to the conversation and has not been fed yet
  int64_t messages = 0;  // of the chat so far, replies included
  std::string chain;     // a hash over them, see message_chain()
  std::shared_ptr<const SequenceSnapshot> snapshot;
};

// What a state must be of to be taken.
struct StateShape {
  std::string fingerprint;  // of the model
  int64_t slot_floats = 0;
  int64_t vocab_size = 0;
};

inline constexpr size_t kMaxSessionHeader = 64 << 10;

std::string encode_session(const SessionRecord& record, const StateShape& shape);
// Throws Error(kBadInput) in one sentence that begins with `source` for anything but a whole state
// of this model that was saved under `name`.
SessionRecord decode_session(std::string_view bytes, const StateShape& shape,
                             const std::string& name, const std::string& source);
// From the first bytes alone (at least the header, else an Error); `size` is that of the whole.
SessionInfo peek_session(std::string_view beginning, int64_t size, const std::string& source);

// The hash of a conversation that `message` is added to; "" is the chain of none.
std::string message_chain(const std::string& chain, std::string_view message);

}  // namespace laplace
