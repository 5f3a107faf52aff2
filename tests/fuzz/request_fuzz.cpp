// libFuzzer entry: any bytes as the body of a request, or as a saved session. The first byte
// chooses what they are; a body is tried as it is and, with other bytes, as the value of a field of
// a sound request. Nothing may crash, leak or hang, and every answer is one of ours.
//
// Without libFuzzer, request_fuzz_main.cpp calls it with random bytes.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "../server/memory_server.h"
#include "base/log.h"

namespace {

using laplace::MemoryServer;

MemoryServer& server() {
  static MemoryServer* const instance = [] {
    laplace::set_log_level(laplace::LogLevel::kOff);
    return new MemoryServer;  // for the life of the process
  }();
  return *instance;
}

constexpr std::array<std::string_view, 36> kFields = {"prompt",
                                                      "max_tokens",
                                                      "temperature",
                                                      "top_p",
                                                      "top_k",
                                                      "min_p",
                                                      "seed",
                                                      "stop",
                                                      "n",
                                                      "echo",
                                                      "logprobs",
                                                      "logit_bias",
                                                      "ignore_eos",
                                                      "min_tokens",
                                                      "stop_token_ids",
                                                      "allowed_token_ids",
                                                      "stream",
                                                      "stream_options",
                                                      "session",
                                                      "session_input",
                                                      "cache_salt",
                                                      "model",
                                                      "messages",
                                                      "top_logprobs",
                                                      "best_of",
                                                      "suffix",
                                                      "presence_penalty",
                                                      "frequency_penalty",
                                                      "repetition_penalty",
                                                      "tools",
                                                      "response_format",
                                                      "max_completion_tokens",
                                                      "chat_template",
                                                      "name",
                                                      "tokens",
                                                      "priority"};

void expect_answer(const std::shared_ptr<laplace::MemoryExchange>& exchange) {
  const int status = exchange->status;
  const bool known = status == 200 || status == 400 || status == 404 || status == 405 ||
                     status == 409 || status == 415 || status == 507;
  if (!known) std::abort();
  if (status != 200 && !exchange->body.starts_with("{\"error\":{\"message\":")) std::abort();
}

void decode_state(std::string_view bytes) {
  try {
    laplace::decode_session(bytes, laplace::fake_shape(), "name", "fuzz");
  } catch (const laplace::Error& error) {
    if (error.kind() != laplace::ErrorKind::kBadInput) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const bool chat = (data[0] & 1) != 0;
  const char* const path = chat ? "/v1/chat/completions" : "/v1/completions";
  switch ((data[0] >> 1) % 6) {
    case 0:
      expect_answer(server().ask("POST", path, std::string(text)));
      break;
    case 1:
    case 2: {
      const std::string_view field = kFields[data[1] % kFields.size()];
      std::string body =
          chat ? R"({"messages":[{"role":"user","content":"x"}],)" : R"({"prompt":"x",)";
      body += laplace::cat("\"max_tokens\":2,\"", field, "\":", text, "}");
      expect_answer(server().ask("POST", path, std::move(body)));
      break;
    }
    case 3:
      expect_answer(server().ask("POST", (data[1] & 1) != 0 ? "/tokenize" : "/detokenize",
                                 std::string(text)));
      break;
    case 4: {
      const std::string target = laplace::cat("/v1/sessions/", text.substr(0, 100));
      expect_answer(server().ask((data[1] & 1) != 0 ? "DELETE" : "GET", target, ""));
      break;
    }
    default:
      decode_state(text);
      break;
  }
  return 0;
}
