// From a checked request to what the engine is fed: ids, and the state they go on from.
// Internal to src/serve/http.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/engine/snapshot.h"
#include "serve/http/completion_request.h"
#include "serve/sessions/session_manager.h"

namespace laplace {

struct ServiceContext;

struct PromptPlan {
  std::vector<TokenId> ids;                      // to be fed
  std::shared_ptr<const SequenceSnapshot> from;  // behind which; null: nothing
  int64_t cached = 0;                            // tokens that `from` stands for
  bool hides_first = false;  // ids begin with an end-of-text that is not the client's
  std::string text;          // of the prompt, for echo
  // For the prefix cache, empty where it is off: all ids, and offsets in `ids` for snapshots.
  std::shared_ptr<const std::vector<TokenId>> all_ids;
  std::vector<int64_t> snapshot_at;
};

struct RequestPlan {
  std::vector<PromptPlan> prompts;
  std::string scope;  // of the prefix cache
  std::vector<std::string> stops;
  std::vector<TokenId> stop_token_ids;

  // With a session: what its record will say when the reply has come.
  std::unique_ptr<SessionLease> lease;
  std::string session_form;
  int64_t session_turns = 0;
  int64_t session_messages = 0;
  std::string session_chain;  // of the messages so far
};

// Tokenizes, and looks up what is known of the prompts. `lease`: of the session the request names,
// or null. May take long for a long text. Throws ApiError.
RequestPlan plan_request(ServiceContext& context, const CompletionRequest& request,
                         const std::string& tenant, std::unique_ptr<SessionLease> lease);

}  // namespace laplace
