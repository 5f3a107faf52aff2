// The directory that `data prepare` fills: it appears, or takes the place of an older data set,
// only when it is complete.
#pragma once

#include "base/files.h"

namespace laplace {

class OutputDirectory {
 public:
  // Refuses a path that holds a data set, or another tokenizer than the one with this fingerprint,
  // unless `overwrite`, and always one that holds anything else, so that a slip of the keyboard
  // removes nothing but data sets.
  OutputDirectory(const Path& path, bool overwrite, uint64_t tokenizer);

  // Where the files go until commit(). Destroyed without commit, it is removed and `path` is as it
  // was before.
  const Path& temporary() const { return directory_.temporary(); }
  void commit();

 private:
  Path path_;
  AtomicDirectory directory_;
};

}  // namespace laplace
