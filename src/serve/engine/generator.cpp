// See generator.h.
#include "serve/engine/generator.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "base/error.h"
#include "serve/engine/text_stream.h"

namespace laplace {

namespace {

// Pieces end where chunks do, so that cutting a prompt does not move the chunks' borders.
int64_t piece_tokens(const ModelConfig& config) {
  return std::max<int64_t>(kPrefillTokens / config.chunk_size, 1) * config.chunk_size;
}

ModelState copy_of(const ModelState& state) {
  ModelState copy;
  for (const LayerState& layer : state) copy.push_back({layer.S.clone(), layer.window.clone()});
  return copy;
}

SequenceState fresh_state(const Decoder& decoder) {
  return {decoder.zero_state(1), {}, TokenCounts(decoder.config().vocab_size), 0};
}

}  // namespace

Generator::Generator(const Decoder& decoder, int64_t num_ids)
    : decoder_(decoder),
      allowed_{std::min(num_ids, decoder.config().vocab_size)},
      state_(fresh_state(decoder)) {}

void Generator::check(TokenId id) const {
  const int64_t vocab_size = decoder_.config().vocab_size;
  if (id >= 0 && id < vocab_size) return;
  fail_input("the token id ", id, " is outside the model's vocabulary; ids run from 0 to ",
             vocab_size - 1);
}

at::Tensor Generator::tensor_of(std::span<const TokenId> ids) const {
  const at::Tensor tokens = at::empty({int64_t(ids.size())}, at::kLong);
  std::ranges::copy(ids, tokens.mutable_data_ptr<int64_t>());
  return tokens.to(decoder_.device());
}

void Generator::keep_logits(const at::Tensor& logits) {
  state_.logits = logits.view({-1}).to(at::kCPU, at::kFloat).contiguous();
}

bool Generator::prefill(std::span<const TokenId> ids, const std::function<bool()>& interrupted) {
  for (const TokenId id : ids) check(id);
  const c10::InferenceMode guard;
  const auto piece = size_t(piece_tokens(decoder_.config()));
  while (!ids.empty()) {
    if (interrupted && interrupted()) return false;
    const auto part = ids.first(std::min(piece, ids.size()));
    const at::Tensor hidden =
        decoder_.hidden(tensor_of(part).unsqueeze(0), {}, &state_.model, Form::kChunked);
    keep_logits(decoder_.logits(hidden.slice(0, hidden.size(0) - 1)));
    for (const TokenId id : part) state_.counts.add_prompt(id);
    state_.position += int64_t(part.size());
    ids = ids.subspan(part.size());
  }
  return true;
}

TokenId Generator::pick(const SamplingParams& params, TokenId banned) {
  AllowedIds allowed = allowed_;
  allowed.banned = banned;
  return sampler_.sample(logits(), params, &state_.counts, allowed, uint64_t(state_.position));
}

void Generator::feed(TokenId id) {
  check(id);
  const c10::InferenceMode guard;
  keep_logits(decoder_.step(tensor_of({&id, 1}), state_.model));
  state_.counts.add_output(id);
  ++state_.position;
}

void Generator::reset() {
  state_.model = decoder_.zero_state(1);
  state_.logits.reset();
  state_.counts.clear();
  state_.position = 0;
}

std::span<const float> Generator::logits() const {
  if (!state_.logits.defined()) fail("nothing has been fed to the model yet");
  return {state_.logits.const_data_ptr<float>(), size_t(state_.logits.numel())};
}

SequenceState Generator::snapshot() const {
  // The logits are replaced by every token, never written to, so they can be shared.
  return {copy_of(state_.model), state_.logits, state_.counts, state_.position};
}

void Generator::restore(const SequenceState& state) {
  state_ = {copy_of(state.model), state.logits, state.counts, state.position};
}

void GenerationOptions::validate() const {
  sampling.validate();
  if (max_tokens < 0) fail_input("max_tokens is ", max_tokens, ", but must be 0 or more");
  if (min_tokens < 0 || min_tokens > max_tokens) {
    fail_input("min_tokens is ", min_tokens, ", but must be from 0 to max_tokens (", max_tokens,
               ")");
  }
}

std::string_view finish_reason_name(GenerationEnd reason) {
  switch (reason) {
    case GenerationEnd::kEndOfText:
    case GenerationEnd::kStopString:
      return "stop";
    case GenerationEnd::kLength:
      return "length";
    case GenerationEnd::kInterrupted:
      break;
  }
  return "interrupted";
}

GenerationResult generate(Generator& generator, const Tokenizer& tokenizer, TokenId end_of_text,
                          const GenerationOptions& options, const GenerationSink& sink) {
  TextStream stream(tokenizer, options.stops);
  const auto emit = [&](const std::string& text) {
    if (sink.text && !text.empty()) sink.text(text);
  };
  GenerationResult result;
  while (result.tokens < options.max_tokens) {
    if (sink.interrupted && sink.interrupted()) {
      result.reason = GenerationEnd::kInterrupted;
      break;
    }
    const bool too_early = result.tokens < options.min_tokens && !options.ignore_end_of_text;
    const TokenId id = generator.pick(options.sampling, too_early ? end_of_text : -1);
    if (id == end_of_text && !options.ignore_end_of_text) {
      result.reason = GenerationEnd::kEndOfText;
      break;
    }
    ++result.tokens;
    if (sink.token) sink.token(id);
    emit(stream.push(id));
    generator.feed(id);
    if (stream.stopped()) {
      result.reason = GenerationEnd::kStopString;
      break;
    }
  }
  emit(stream.finish());
  return result;
}

}  // namespace laplace
