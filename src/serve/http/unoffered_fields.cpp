// See unoffered_fields.h.
#include "serve/http/unoffered_fields.h"

namespace laplace {

namespace {

void check_response_format(RequestFields& fields) {
  const auto format = fields.any("response_format");
  if (!format) return;
  JsonElement type;
  const JsonObject object = object_of(*format, "response_format");
  if (object.at_key("type").get(type) != simdjson::SUCCESS ||
      text_of(type, "response_format.type") != "text") {
    fail_field("response_format", "response_format: only {\"type\": \"text\"} is offered");
  }
}

// With the choice "none" the tools that come along are not used, as in OpenAI's API. "auto" without
// tools is what some clients send always.
void refuse_tools(RequestFields& fields, std::string_view tools, std::string_view choice) {
  const auto chosen = fields.any(choice);
  const std::string_view name =
      chosen && chosen->is_string() ? std::string_view(*chosen) : std::string_view("auto");
  const bool object = chosen && !chosen->is_string();
  if (object || (name != "none" && name != "auto")) {
    fail_field(std::string(choice), choice,
               ": tools are not offered; leave it out or give \"none\"");
  }
  if (name == "none") {
    fields.ignore({tools});
  } else {
    fields.refuse(tools, "tools are not offered; leave them out");
  }
}

void check_modalities(RequestFields& fields) {
  const auto modalities = fields.any("modalities");
  if (!modalities) return;
  for (const JsonElement kind : array_of(*modalities, "modalities")) {
    if (text_of(kind, "modalities") != "text") {
      fail_field("modalities", "modalities: only text is offered");
    }
  }
}

}  // namespace

void refuse_unoffered(RequestFields& fields) {
  check_response_format(fields);
  fields.refuse("chat_template", "the chat template is the model's, never a request's");
  fields.refuse("chat_template_kwargs", "the chat template is the model's, never a request's");
  for (const char* const name :
       {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "guided_decoding_backend", "guided_whitespace_pattern", "regex", "json_schema", "ebnf",
        "grammar"}) {
    fields.refuse(name, "only free text is offered; leave it out");
  }
  fields.refuse("use_beam_search", "beam search is not offered");
  fields.ignore({"length_penalty", "early_stopping"});  // of beam search alone
  fields.refuse("logits_processors", "give logit_bias instead");
  fields.refuse("priority", "priorities are not a client's to choose here");
  fields.refuse("prompt_embeds", "embeddings are not taken as prompts");
  fields.refuse("prompt_logprobs", "give echo and logprobs to /v1/completions instead");
  fields.refuse("truncate_prompt_tokens", "no prompt is too long here; leave it out");
  fields.refuse("include_stop_str_in_output", "a reply ends before its stop text");
  fields.refuse("bad_words", "give logit_bias with -100 instead");
  fields.refuse("return_token_ids", "give the text to /tokenize instead");
  fields.refuse("return_tokens_as_token_ids", "tokens are shown as text; leave it out");
  fields.refuse("stop_regex", "give stop with fixed texts instead");
}

void refuse_unoffered_in_chat(RequestFields& fields) {
  refuse_tools(fields, "tools", "tool_choice");
  refuse_tools(fields, "functions", "function_call");
  fields.refuse("documents", "documents are not offered");
  fields.refuse("audio", "only text is offered");
  fields.refuse("web_search_options", "nothing is ever fetched; leave it out");
  fields.refuse("continue_final_message", "a reply is a message of its own; leave it out");
  if (!fields.boolean("add_generation_prompt").value_or(true)) {
    fail_field("add_generation_prompt", "add_generation_prompt is false, but must be true");
  }
  if (fields.boolean("echo").value_or(false)) fail_field("echo", "echo is for /v1/completions");
  check_modalities(fields);
}

}  // namespace laplace
