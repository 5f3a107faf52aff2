// See page.h.
#include "serve/http/page.h"

#include <sodium.h>

#include <array>

#include "base/strings.h"

namespace laplace {

// Made from page/ by embed_page.cmake.
extern const std::string_view kPageHtml;

namespace {

// "'sha256-...'" of what stands between the first `<tag>` and its end.
std::string hash_source(std::string_view tag) {
  const std::string open = cat("<", tag, ">"), close = cat("</", tag, ">");
  const size_t begin = kPageHtml.find(open) + open.size();
  const std::string_view text = kPageHtml.substr(begin, kPageHtml.find(close, begin) - begin);
  std::array<unsigned char, crypto_hash_sha256_BYTES> hash{};
  crypto_hash_sha256(hash.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size());
  std::array<char,
             sodium_base64_ENCODED_LEN(crypto_hash_sha256_BYTES, sodium_base64_VARIANT_ORIGINAL)>
      base64{};
  sodium_bin2base64(base64.data(), base64.size(), hash.data(), hash.size(),
                    sodium_base64_VARIANT_ORIGINAL);
  return cat("'sha256-", base64.data(), "'");
}

}  // namespace

HttpResponse page_response() {
  static const std::string policy =
      cat("default-src 'none'; script-src ", hash_source("script"), "; style-src ",
          hash_source("style"),
          "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
          "frame-ancestors 'none'");
  return {200,
          "text/html; charset=utf-8",
          std::string(kPageHtml),
          {{"content-security-policy", policy},
           {"referrer-policy", "no-referrer"},
           {"cache-control", "no-cache"}}};
}

}  // namespace laplace
