// tegula-simulate: machines that nobody here owns, and a description of the one that is here.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <tegula/tegula.hpp>

#include "apps/simulate/commands.hpp"

using namespace tegula;

std::string apps::run_program(const std::vector<std::string>& command, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  const auto before =
      std::signal(SIGINT, SIG_IGN);  // Ctrl-C is for the program: what is left behind is cleared away here
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    const int file = log.empty() ? -1 : open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (!log.empty() && (file < 0 || dup2(file, STDOUT_FILENO) < 0 || dup2(file, STDERR_FILENO) < 0)) {
      std::fprintf(stderr, "tegula-simulate: %s: %s\n", log.c_str(), std::strerror(errno));
      _exit(127);
    }
    execvp(arguments[0], arguments.data());
    std::fprintf(stderr, "tegula-simulate: %s: %s\n", arguments[0], std::strerror(errno));
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::signal(SIGINT, before);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fmt::format("{}: {}", command[0],
                     WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status))
                                       : fmt::format("signal {}", WTERMSIG(status)));
}

int main(int argc, char** argv) {
  return run([&] {
    if (argc > 1 && std::strcmp(argv[1], "calibrate") == 0) return apps::calibrate(argc - 1, argv + 1);
    return apps::simulate(argc, argv);
  });
}
