// Hugging Face's tokenizer.json, of the byte-level BPE kind, and GPT-2's two files.
//
// Source of the format: the library `tokenizers` (0.23), `Tokenizer.save` and `from_file`.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tables.h"

namespace laplace {

// Refuses everything that would give other ids than Hugging Face's library does: other models,
// normalizers, pre-tokenizers, prefixes, dropout. Truncation and padding concern batches, not ids,
// and are ignored. Throws Error(kBadInput) on any other text.
std::shared_ptr<const Tokenizer::Tables> tables_from_json(std::string_view text,
                                                          const std::string& source);
std::string tables_to_json(const Tokenizer::Tables& tables);

// The contents of encoder.json (piece to id) and vocab.bpe (a merge a line); "<|endoftext|>" is
// special when it is there.
std::shared_ptr<const Tokenizer::Tables> tables_from_gpt2(std::string_view encoder,
                                                          const std::string& encoder_source,
                                                          std::string_view merges,
                                                          const std::string& merges_source);

}  // namespace laplace
