// One sequence on a Decoder: a prompt in, tokens out one by one, over a state of constant size.
//
// A sequence has no length limit, and its memory does not grow: the state, the last logits and a
// count for each id are all that is kept. A document starts with the end-of-text token, as in the
// training data, so callers feed [end_of_text] + prompt.
//
// Numbers: prefill runs the chunked form, in pieces of kPrefillTokens, so that its memory is
// bounded; tokens after it run the recurrent form. The two agree up to rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoder.h"
#include "serve/engine/sampler.h"
#include "text/tokenizer.h"

namespace laplace {

inline constexpr int64_t kPrefillTokens = 512;

// Everything that decides how a sequence goes on. Copying it shares tensors; see Generator.
struct SequenceState {
  ModelState model;   // of one sequence, B = 1
  at::Tensor logits;  // [V] float32 on the host; undefined before the first token
  TokenCounts counts;
  int64_t position = 0;  // tokens fed so far
};

// Not thread-safe: one per thread; several may share a Decoder.
class Generator {
 public:
  // `decoder` must outlive this. `num_ids`: ids from there on are never picked (the tokenizer's
  // vocabulary; at most the decoder's).
  Generator(const Decoder& decoder, int64_t num_ids);

  // Feeds the ids of a prompt. `interrupted` is asked between pieces: when it says so, the rest is
  // left out and the result is false. Throws Error(kBadInput) for an id outside the model's
  // vocabulary, before anything is fed.
  bool prefill(std::span<const TokenId> ids, const std::function<bool()>& interrupted = {});
  // The next token: drawn from the last logits, not fed. `banned` as in AllowedIds. Something must
  // have been fed.
  TokenId pick(const SamplingParams& params, TokenId banned = -1);
  // Feeds a token that was generated (penalties count it as output).
  void feed(TokenId id);
  // As new.
  void reset();

  // [V], of the last token fed.
  std::span<const float> logits() const;
  int64_t position() const { return state_.position; }
  const Decoder& decoder() const { return decoder_; }

  // A copy of the state that later tokens leave alone: to save it, or to return to it (fork).
  // A sequence restored goes on with the same bits as the one saved.
  SequenceState snapshot() const;
  void restore(const SequenceState& state);

 private:
  void check(TokenId id) const;
  at::Tensor tensor_of(std::span<const TokenId> ids) const;  // [n] int64 on the decoder's device
  void keep_logits(const at::Tensor& logits);                // [1,V]

  const Decoder& decoder_;
  AllowedIds allowed_;
  Sampler sampler_;
  SequenceState state_;
};

struct GenerationOptions {
  SamplingParams sampling;
  int64_t max_tokens = 256;
  int64_t min_tokens = 0;  // the end-of-text token is not picked before
  bool ignore_end_of_text = false;
  std::vector<std::string> stops;

  // Throws Error(kBadInput) naming the field.
  void validate() const;
};

enum class GenerationEnd { kEndOfText, kStopString, kLength, kInterrupted };
// "stop" for the first two (as OpenAI's API names them), "length", "interrupted".
std::string_view finish_reason_name(GenerationEnd reason);

struct GenerationResult {
  GenerationEnd reason = GenerationEnd::kLength;
  int64_t tokens = 0;  // picked, the end-of-text token not among them
};

// Where the results of generate() go; empty functions are not called.
struct GenerationSink {
  std::function<void(std::string_view text)> text;  // whole UTF-8 characters, never empty
  std::function<void(TokenId id)> token;
  std::function<bool()> interrupted;  // asked before each token
};

// Goes on from the generator's state until something ends it. All tokens that were picked have then
// been fed, also those of a stop string; end of text has not, unless it is ignored.
GenerationResult generate(Generator& generator, const Tokenizer& tokenizer, TokenId end_of_text,
                          const GenerationOptions& options, const GenerationSink& sink);

}  // namespace laplace
