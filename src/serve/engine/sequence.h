// One sequence in the scheduler, and the request it belongs to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "serve/engine/picker.h"
#include "serve/engine/request.h"
#include "serve/engine/sampler.h"
#include "serve/engine/text_stream.h"

namespace laplace {

// A request with its sink; shared by its n sequences.
struct Job {
  RequestId id = 0;
  Request request;
  std::shared_ptr<Sink> sink;
  bool forked = false;      // all n sequences exist
  bool sink_threw = false;  // nobody listens any more, but on_finish is still called
};

struct Sequence {
  std::shared_ptr<Job> job;
  int index = 0;      // of n
  int64_t order = 0;  // of arrival; smaller goes first
  int64_t slot = -1;  // -1: none
  bool had_slot = false;
  bool fresh = false;          // its slot holds nothing of it yet: zero once it is fed
  bool done = false;           // on_finish has been called; the next sweep removes it
  size_t fed = 0;              // of the prompt
  int64_t position = 0;        // tokens fed, those of the request's `from` among them
  int64_t generated = 0;       // tokens reported
  int64_t since_admitted = 0;  // tokens picked since it got its slot
  TokenId pending = -1;        // picked and reported, not fed yet
  size_t next_snapshot = 0;    // of snapshot_at
  // From its first slot on: who waits takes no table.
  std::optional<TokenCounts> counts;
  std::optional<TextStream> text;
  std::vector<float> swapped;                    // the state, while it has no slot but had one
  std::shared_ptr<const SequenceSnapshot> from;  // where it begins, until it has a slot
  std::optional<Finish> ending;  // it ends with this, once `pending` is fed (snapshot_at_end)

  Sequence(std::shared_ptr<Job> owner, int which) : job(std::move(owner)), index(which) {}

  const Request& request() const { return job->request; }
  int priority() const { return job->request.priority; }
  bool prompt_done() const { return fed == job->request.prompt.size(); }
  int64_t cached() const { return request().from ? request().from->position : 0; }
};

// Larger priority first, then first come.
inline bool goes_before(const Sequence& a, const Sequence& b) {
  return a.priority() != b.priority() ? a.priority() > b.priority() : a.order < b.order;
}

}  // namespace laplace
