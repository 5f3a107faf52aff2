// The web page at "/": the files of page/, embedded at build time.
#pragma once

#include "serve/http/exchange.h"

namespace laplace {

// With a content security policy that allows the page's own script and style, by their hashes, and
// requests to this server; nothing else.
HttpResponse page_response();

}  // namespace laplace
