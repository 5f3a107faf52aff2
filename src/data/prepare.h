// From text files to a data directory: import, tokenize on all cores, split, write shards.
#pragma once

#include <cstdint>

#include "base/files.h"
#include "data/dataset.h"
#include "data/importer.h"
#include "data/splitter.h"

namespace laplace {

struct PrepareOptions {
  Path tokenizer;  // what Tokenizer::open takes
  Path out;
  ImportOptions import;
  SplitOptions split;
  int threads = 0;  // 0: all cores
  bool overwrite = false;
};

struct PrepareReport {
  DatasetInfo info;
  int64_t files = 0;
  int64_t bad_lines = 0;        // left out because of skip_bad
  int64_t empty_documents = 0;  // left out
};

// Writes `out` with train and val shards, dataset.json and tokenizer.json. The files do not depend
// on the number of threads. `out` appears when it is complete; a failure leaves what was there
// before. Throws Error; a stop signal (base/process.h) ends it with an error too.
PrepareReport prepare_dataset(const PrepareOptions& options);

}  // namespace laplace
