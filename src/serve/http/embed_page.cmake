# cmake -DINPUT=page.html -DOUTPUT=page_html.cpp -P embed_page.cmake: the page as a C++ text.
file(READ "${INPUT}" TEXT)
if(TEXT MATCHES "\\)laplace_page\"")
  message(FATAL_ERROR "${INPUT} holds the end of a raw string")
endif()
# One literal may not be arbitrarily long for every compiler: pieces of 8,000 characters are joined.
string(LENGTH "${TEXT}" LENGTH)
set(BODY "")
set(AT 0)
while(AT LESS LENGTH)
  string(SUBSTRING "${TEXT}" ${AT} 8000 PIECE)
  string(APPEND BODY "R\"laplace_page(${PIECE})laplace_page\"\n")
  math(EXPR AT "${AT} + 8000")
endwhile()
file(WRITE "${OUTPUT}" "// Made from page.html; see embed_page.cmake.
#include <string_view>
namespace laplace {
extern const std::string_view kPageHtml;
const std::string_view kPageHtml = ${BODY};
}  // namespace laplace
")
