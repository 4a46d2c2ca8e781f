// The sub-commands of gpt: each takes the arguments from its own name on, and returns the exit code.
#pragma once

namespace tegula::apps {

int prepare(int argc, char** argv);
int tokenizer(int argc, char** argv);
int import_weights(int argc, char** argv);
int train(int argc, char** argv);
int estimate(int argc, char** argv);
int evaluate(int argc, char** argv);
int generate(int argc, char** argv);

// Exit code of a training that a SIGTERM or SIGUSR1 has ended behind a checkpoint: EX_TEMPFAIL of sysexits.h, try again.
inline constexpr int to_be_continued = 75;

}  // namespace tegula::apps
