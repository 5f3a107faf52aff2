// Fields of OpenAI's API and of other servers' that would change a reply and are not offered here.
#pragma once

#include "serve/http/request_fields.h"

namespace laplace {

// 400 that names the field and says what to do instead. A value that asks for nothing (false, 0,
// empty, what is done anyway) passes: many clients send all their fields always.
void refuse_unoffered(RequestFields& fields);
void refuse_unoffered_in_chat(RequestFields& fields);

}  // namespace laplace
