// gpt: trains and uses language models.
//
//   build/apps/gpt prepare --text book.txt --out data/book
//   build/apps/gpt train --data data/book --out runs/book --resume auto
//   build/apps/gpt generate --run runs/book --prompt "In the beginning"
#include <cstdio>
#include <cstring>
#include <tegula/tegula.hpp>

#include "apps/gpt/commands.hpp"

namespace {

struct Command {
  const char* name;
  int (*run)(int, char**);
  const char* help;
};

constexpr Command commands[] = {
    {"prepare", tegula::apps::prepare, "text files to token files"},
    {"tokenizer", tegula::apps::tokenizer, "learn one: gpt tokenizer train"},
    {"import", tegula::apps::import_weights, "GPT-2 and Llama weights in Hugging Face's format"},
    {"train", tegula::apps::train, "train a model; --resume auto goes on where an earlier run ended"},
    {"estimate", tegula::apps::estimate, "what a training step would take on another machine"},
    {"evaluate", tegula::apps::evaluate, "loss of a trained model on a text"},
    {"generate", tegula::apps::generate, "text from a trained model"},
};

int usage(int code) {
  if (tegula::launched_rank() != 0) return code;
  std::fprintf(code == 0 ? stdout : stderr,
               "Usage: gpt COMMAND [OPTIONS]; gpt COMMAND --help lists the options\n\n");
  for (const Command& command : commands)
    std::fprintf(code == 0 ? stdout : stderr, "  %-10s %s\n", command.name, command.help);
  return code;
}

int unknown(const char* name) {
  if (tegula::launched_rank() != 0) return tegula::io::Options::usage_error;
  std::fprintf(stderr, "gpt: no command is called '%s'\n", name);
  return usage(tegula::io::Options::usage_error);
}

}  // namespace

int main(int argc, char** argv) {
  return tegula::run([&] {
    if (argc < 2) return usage(tegula::io::Options::usage_error);
    if (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0) return usage(0);
    for (const Command& command : commands)
      if (std::strcmp(argv[1], command.name) == 0) return command.run(argc - 1, argv + 1);
    return unknown(argv[1]);
  });
}
