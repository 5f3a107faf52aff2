# cmake -DFOLDER=page -DOUTPUT=page_html.cpp -P embed_page.cmake: the page, with its style and scripts in
# their places, as a C++ text. The scripts are one: they share their names.
set(SCRIPTS base.js conversation.js sessions.js live.js keys.js)

file(READ "${FOLDER}/page.html" TEXT)
file(READ "${FOLDER}/style.css" STYLE)
set(SCRIPT "\"use strict\";\n")
foreach(NAME ${SCRIPTS})
  file(READ "${FOLDER}/${NAME}" PART)
  string(APPEND SCRIPT "${PART}")
endforeach()
string(REPLACE "@style.css@" "${STYLE}" TEXT "${TEXT}")
string(REPLACE "@script@" "${SCRIPT}" TEXT "${TEXT}")
if(TEXT MATCHES "\\)laplace_page\"")
  message(FATAL_ERROR "${FOLDER} holds the end of a raw string")
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
file(WRITE "${OUTPUT}" "// Made from page/; see embed_page.cmake.
#include <string_view>
namespace laplace {
extern const std::string_view kPageHtml;
const std::string_view kPageHtml = ${BODY};
}  // namespace laplace
")
