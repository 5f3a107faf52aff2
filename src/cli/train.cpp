// train: a model from token shards. Every flag may stand in a recipe.
#include <cmath>
#include <iostream>
#include <memory>

#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "cli/recipe.h"
#include "cli/verbs.h"
#include "train/trainer.h"

namespace laplace::cli {

namespace {

// Options whose last value wins, so that the command line overrides the recipe in front of it.
template <class T>
CLI::Option* option(CLI::App& app, const std::string& name, T& value, const std::string& text) {
  return app.add_option(name, value, text)
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

// `--name` or `--name=true`, `--name=false`.
CLI::Option* flag(CLI::App& app, const std::string& name, bool& value, const std::string& text) {
  return app.add_flag(name, value, text + " (" + name + "=false turns it off)")
      ->default_str(value ? "true" : "false")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void bind_run(CLI::App& app, TrainOptions& o) {
  app.add_option("--recipe", "TOML file whose keys are these flags; flags given here override it")
      ->type_name("FILE")
      ->configurable(false);
  option(app, "--config", o.config, "config.json of the model")->type_name("FILE");
  option(app, "--data", o.data, "Data directory, see data prepare")->type_name("DIR");
  option(app, "--out", o.out, "Run directory to make: checkpoints, log.jsonl, recipe.toml")
      ->type_name("DIR");
  app.add_flag("--resume", o.resume, "Go on from the newest complete checkpoint in --out, exactly")
      ->configurable(false);
  option(app, "--steps", o.steps, "Budget: optimiser steps");
  option(app, "--tokens", o.tokens, "Budget: training tokens");
  option(app, "--minutes", o.minutes,
         "Budget: minutes; the steps are fixed once the speed is known");
  option(app, "--device", o.device, "Where to compute: cpu, or any device LibTorch knows");
  option(
      app, "--dtype", o.dtype,
      "Dtype of matrix products: bfloat16 (masters stay float32), float32, or auto (bfloat16 where "
      "the machine multiplies it natively)");
  option(app, "--threads", o.threads, "Threads, 0 for all cores")
      ->check(CLI::Range(0, kMostThreads));
  option(app, "--seed", o.seed, "Initial values and order of samples");
}

void bind_optimisation(CLI::App& app, TrainOptions& o) {
  option(app, "--seq-length", o.seq_length, "Tokens of a row");
  option(app, "--batch", o.batch, "Rows of a step");
  option(app, "--micro-batch", o.micro_batch, "Rows at once, 0 for the whole batch");
  option(
      app, "--recompute", o.recompute,
      "Activations in backward: none keeps all, layer recomputes each layer, auto by the memory");
  option(app, "--lr", o.lr, "Peak learning rate of the matrices (Muon)");
  option(app, "--adamw-lr", o.adamw_lr, "Peak rate of everything else (AdamW), 0 for --lr");
  option(app, "--schedule", o.schedule, "cosine, wsd or constant");
  option(app, "--warmup", o.warmup, "Warm-up: steps, or a share of all steps if below 1");
  option(app, "--decay", o.decay, "Final descent of wsd: steps, or a share if below 1");
  option(app, "--min-lr-ratio", o.min_lr_ratio, "Last rate over the peak");
  option(app, "--clip", o.clip, "Largest gradient norm, 0 for none");
  option(app, "--weight-decay", o.weight_decay,
         "Decoupled weight decay of matrices, embedding and head");
  option(app, "--momentum", o.momentum, "Muon's momentum");
  flag(app, "--nesterov", o.nesterov, "Nesterov momentum");
  option(app, "--newton-schulz", o.newton_schulz,
         "simple, quintic, or polar_express3 to polar_express8");
  option(app, "--newton-schulz-form", o.newton_schulz_form,
         "direct, gram (fewer operations for long float32 matrices) or auto");
  option(app, "--adjust", o.adjust, "Muon's rate by shape: match_rms_adamw or original");
  flag(app, "--per-block", o.per_block, "Orthogonalise q, k, v, g and gate, up each on its own");
  option(app, "--beta1", o.beta1, "AdamW's beta1");
  option(app, "--beta2", o.beta2, "AdamW's beta2");
  option(app, "--eps", o.eps, "AdamW's epsilon");
}

void bind_watching(CLI::App& app, TrainOptions& o) {
  option(app, "--val-every", o.val_every, "Steps between validations, 0 for the end only");
  option(app, "--val-tokens", o.val_tokens,
         "Tokens of a validation in between; the last reads all");
  flag(app, "--val-carry", o.val_carry, "Carry the state from window to window in validation");
  option(app, "--checkpoint-every", o.checkpoint_every,
         "Steps between checkpoints, 0 for the end only");
  option(app, "--checkpoint-minutes", o.checkpoint_minutes, "And at least this often, 0 for off");
  option(app, "--keep-checkpoints", o.keep_checkpoints, "How many to keep, 0 for all");
}

// NaN and infinity have no JSON; null stands for them.
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

void print(const TrainOptions& options, const TrainResult& result, bool json) {
  const ValidationResult& v = result.validation;
  if (json) {
    Json out;
    out["run"] = options.out;
    out["steps"] = result.steps;
    out["stopped"] = result.stopped;
    out["loss"] = finite(result.loss);
    out["tokens_per_second"] = finite(result.tokens_per_second);
    out["seconds"] = finite(result.seconds);
    out["val_loss"] = v.tokens > 0 ? finite(v.loss) : Json();
    out["val_bits_per_byte"] = v.bits_per_byte > 0 ? finite(v.bits_per_byte) : Json();
    std::cout << to_line(out) << "\n";
    return;
  }
  std::cout << (result.stopped ? "stopped" : "finished") << " after step " << result.steps << ", "
            << human_duration(result.seconds) << ", " << human_count(result.tokens_per_second)
            << " tokens/s";
  if (v.tokens > 0) std::cout << strf(", validation loss %.4f", v.loss);
  if (v.bits_per_byte > 0) std::cout << strf(", %.4f bits per byte", v.bits_per_byte);
  std::cout << "\n";
  if (result.stopped) log_info("go on with the same command and --resume");
}

}  // namespace

void add_train(CLI::App& program) {
  CLI::App* const app = program.add_subcommand("train", "Train a model on token shards");
  const auto options = std::make_shared<TrainOptions>();
  const auto json = std::make_shared<bool>(false);
  bind_run(*app, *options);
  bind_optimisation(*app, *options);
  bind_watching(*app, *options);
  app->add_flag("--json", *json, "Print the result as JSON")->configurable(false);
  app->footer(
      "Examples:\n"
      "  laplace train --recipe configs/demo.toml --data data --out run\n"
      "  laplace train --recipe configs/demo.toml --data data --out run --resume\n"
      "  laplace train --config configs/laplace-160m.json --data data --out run --tokens 1e9");
  app->callback([app, options, json] {
    for (const auto& [name, value] : {std::pair{"--config", &options->config},
                                      {"--data", &options->data},
                                      {"--out", &options->out}}) {
      if (value->empty()) throw CLI::RequiredError(name);
    }
    print(*options, train(*options, resolved_recipe(*app)), *json);
  });
}

}  // namespace laplace::cli
