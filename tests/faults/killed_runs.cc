#include "tests/faults/killed_runs.h"

#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "core/train/checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/cli/program.h"
#include "tests/faults/running_program.h"
#include "tests/parallel/visitor.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kUpdates = 20;         // of every mode
constexpr double kLastSeconds = 20;  // for others to end after the process that we started

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// --- processes ---

std::vector<pid_t> ChildrenOf(pid_t process) {
  std::vector<pid_t> children;
  std::error_code gone;
  for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", process), gone)) {
    std::ifstream list(thread.path() / "children");
    for (pid_t child; list >> child;) children.push_back(child);
  }
  return children;
}

// Of the environment that the process was started with; "": none.
std::string VariableOf(pid_t process, const std::string& name) {
  const std::string all = '\0' + Contents(fmt::format("/proc/{}/environ", process));
  const size_t at = all.find('\0' + name + "=");
  return at == std::string::npos ? "" : std::string(all.c_str() + at + name.size() + 2);
}

bool IsRank(pid_t process, int rank) {
  const std::string number = std::to_string(rank);
  return VariableOf(process, "RANK") == number || VariableOf(process, "OMPI_COMM_WORLD_RANK") == number;
}

// 'T': stopped; 'X': gone, or about to be collected.
char StateOf(pid_t process) {
  if (RunningProgram::IsGone(process)) return 'X';
  const std::string text = Contents(fmt::format("/proc/{}/stat", process));
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos ? 'X' : text[name_end + 2];
}

// Collects what has ended of our children; descendants whose parents have ended are ours, too.
bool HasChildren() {
  pid_t collected;
  while ((collected = waitpid(-1, nullptr, WNOHANG)) > 0) {
  }
  return collected == 0;
}

void EndChildren() {
  while (HasChildren()) {
    for (const pid_t child : ChildrenOf(getpid())) kill(child, SIGKILL);
    Sleep(0.005);
  }
}

// --- what a run leaves ---

// "": the run has no folder yet.
fs::path RunFolder(const std::string& folder) {
  std::error_code none;
  for (const auto& model : fs::directory_iterator(folder + "/run", none)) {
    const fs::path run = model.path() / "shapes" / "a" / "run";
    if (fs::exists(run)) return run;
  }
  return "";
}

bool HasDraft(const fs::path& run) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", none)) {
    if (entry.path().filename().string().starts_with(".step-")) return true;
  }
  return false;
}

template <typename File>
std::string LoadWhole(const File& file) {
  for (const TensorFile::Entry& entry : file.entries()) {
    std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes));
    if (const Status read = file.Read(entry, bytes.data()); !read.ok()) return Message(read);
  }
  return "";
}

// What is wrong with the checkpoints under their names.
std::string DamageOf(const fs::path& run) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", none)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".") || name == "abandoned") continue;
    const auto checkpoint = LoadCheckpoint(entry.path());
    if (!checkpoint.ok()) return Message(checkpoint.status());
    if (const std::string damage = LoadWhole(checkpoint->weights); !damage.empty()) return damage;
    if (const std::string damage = LoadWhole(checkpoint->state); !damage.empty()) return damage;
  }
  return "";
}

// The last record of each update and kind, without what a clock or the memory's owner says.
std::string MetricsOf(const fs::path& run) {
  std::map<std::pair<int64_t, bool>, std::string> records;
  std::ifstream file(run / "0/log/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) return "not a record: " + line;
    for (const char* of_this_start : {"images_per_s", "data_wait_ms", "comm_wait_ms", "memory_bytes"})
      record.erase(of_this_start);
    records[{record.value("step", int64_t{0}), record.contains("loss")}] = record.dump();
  }
  std::string text;
  for (const auto& [update, record] : records) text += record + "\n";
  return text;
}

// What has to be equal, by name.
std::map<std::string, std::string> FilesOf(const fs::path& run) {
  std::map<std::string, std::string> files;
  files["metrics"] = MetricsOf(run);
  for (const char* link : {"latest", "best"}) {
    std::error_code none;
    const fs::path checkpoint = run / "checkpoints" / link;
    files[link] = fs::read_symlink(checkpoint, none);
    for (const auto& entry : fs::directory_iterator(checkpoint, none))
      files[fmt::format("{}/{}", link, entry.path().filename().string())] = Contents(entry.path());
  }
  std::set<std::string> names;
  for (auto entry = fs::recursive_directory_iterator(run); entry != fs::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().filename();
    if (name == "abandoned") entry.disable_recursion_pending();
    if (name != "abandoned" && !name.starts_with("events.")) names.insert(fs::relative(entry->path(), run));
  }
  for (const std::string& name : names) files["names"] += name + "\n";
  return files;
}

std::string DifferenceOf(const std::map<std::string, std::string>& found,
                         const std::map<std::string, std::string>& expected) {
  std::set<std::string> names;
  for (const auto& files : {found, expected}) {
    for (const auto& [name, content] : files) names.insert(name);
  }
  std::string differing;
  for (const std::string& name : names) {
    if (!found.contains(name) || !expected.contains(name) || found.at(name) != expected.at(name))
      differing += (differing.empty() ? "" : ", ") + name;
  }
  return differing;
}

// --- what a run says ---

enum Phase { kStarting, kBeginning, kTraining, kSaving, kEvaluating, kEnding, kPhases };
constexpr const char* kPhaseNames[] = {"starting", "beginning", "training", "saving", "evaluating", "ending"};

int UpdatesIn(const std::string& output) {
  static const std::regex update("\nepoch [0-9]+/[0-9]+ ");
  return static_cast<int>(std::distance(std::sregex_iterator(output.begin(), output.end(), update), {}));
}

Phase PhaseOf(const std::string& output, const fs::path& run) {
  if (output.find("\n  rank 0") == std::string::npos) return kStarting;
  if (UpdatesIn(output) == 0) return kBeginning;
  if (HasDraft(run)) return kSaving;
  const std::string last = output.substr(output.rfind("\nepoch "));
  static const std::regex position("\nepoch ([0-9]+)/([0-9]+) +([0-9]+)/([0-9]+) ");
  std::smatch found;
  if (std::regex_search(last, found, position)) return found[3] == found[4] ? kEvaluating : kTraining;
  static const std::regex end("\nepoch ([0-9]+)/\\1 +([0-9]+)/\\2 ");
  return std::regex_search(output, end) ? kEnding : kTraining;
}

struct Victim {
  int rank = 0;
  pid_t pid = -1;
  Phase phase = kStarting;
  bool lived = false;  // when it was killed
  std::string Name() const { return fmt::format("rank {} (pid {}", rank, pid); }
};

// Words about a failure that name somebody else, or nobody.
std::string WrongWords(const std::string& output, const std::vector<Victim>& victims) {
  const auto names_one = [&](const std::string& words) {
    return std::any_of(victims.begin(), victims.end(),
                       [&](const Victim& victim) { return words.find(victim.Name()) != std::string::npos; });
  };
  static const std::regex failed("rank [0-9]+ \\(pid [0-9]+[^)]*\\) (died|froze|failed|was killed|has left)");
  for (std::sregex_iterator it(output.begin(), output.end(), failed), end; it != end; ++it) {
    if (!names_one(it->str())) return it->str();
  }
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("error: ") != std::string::npos && !names_one(line)) return line;
    for (const char* crash : {"terminate called", "Sanitizer", "Segmentation fault", "signal 11", "signal 6"}) {
      if (line.find(crash) != std::string::npos) return line;
    }
  }
  return "";
}

// --- what is drawn ---

class Draw {
 public:
  Draw(uint64_t seed, uint64_t number) : numbers_(seed * 0x9E3779B97F4A7C15u + number) {}
  double Share() { return static_cast<double>(numbers_() >> 11) * 0x1p-53; }  // of [0, 1)
  int Below(int limit) { return static_cast<int>(Share() * limit); }

 private:
  std::mt19937_64 numbers_;
};

}  // namespace

struct KilledRuns::Reference {
  std::map<std::string, std::string> files;
  double begin_seconds = 0, update_seconds = 0;  // until the first update; of each, with all that is between
};

struct KilledRuns::Figures {
  std::array<int, kPhases> kills{};
  int too_late = 0, hangs = 0, launcher_hangs = 0, resumed = 0, anew = 0, restarted = 0;
  double slowest = 0;  // end of all, after a kill
  void Add(const Figures& other) {
    for (size_t i = 0; i < kills.size(); ++i) kills[i] += other.kills[i];
    too_late += other.too_late;
    hangs += other.hangs;
    launcher_hangs += other.launcher_hangs;
    resumed += other.resumed;
    anew += other.anew;
    restarted += other.restarted;
    slowest = std::max(slowest, other.slowest);
  }
  int Kills() const { return std::accumulate(kills.begin(), kills.end(), 0); }
};

// One run in `folder`, from its start to its end. Methods that give text: "", or what does not hold.
class KilledRuns::Trial {
 public:
  Trial(const KilledRuns& all, const KilledMode& mode, std::string folder)
      : all_(all), mode_(mode), folder_(std::move(folder)) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Trial() {
    program_.reset();
    EndChildren();
  }

  std::string Uninterrupted(Reference* reference) {
    Start("", true);
    if (!Await([&] { return UpdatesIn(program_->Output()) > 0; })) return "the uninterrupted run does not begin";
    reference->begin_seconds = SecondsSince(started_);
    if (const std::string wrong = EndsWell(); !wrong.empty()) return "the uninterrupted run " + wrong;
    reference->update_seconds = (SecondsSince(started_) - reference->begin_seconds) / kUpdates;
    reference->files = FilesOf(RunFolder(folder_));
    return LeftOver();
  }

  std::string Killed(Draw& draw, const Reference& reference, Figures* figures) {
    const bool restarts = HasLauncher() && draw.Below(3) == 0;
    Start(restarts ? "--max_restarts=2" : "", true);
    KillOne(draw, reference, 0, figures);
    if (restarts && draw.Below(2) == 0 && IsKilled()) {
      const auto restarted = [&] { return program_->Output().find(", restart 1 of 2") != std::string::npos; };
      if (Await(restarted) && restarted()) KillOne(draw, reference, program_->Output().rfind(", restart 1"), figures);
    }
    const auto since = Clock::now();
    if (!AwaitEnd(figures)) {
      ++figures->hangs;
      return fmt::format("the run hangs: it has not ended {} s after the kill", all_.limit_seconds_);
    }
    if (IsKilled() && program_->code() != 0) figures->slowest = std::max(figures->slowest, SecondsSince(since));
    if (const std::string wrong = CheckEnd(restarts, figures); !wrong.empty()) return wrong;
    if (const std::string wrong = LeftOver(); !wrong.empty()) return wrong;
    const fs::path run = RunFolder(folder_);
    if (const std::string damage = DamageOf(run); !damage.empty()) return "a checkpoint does not load: " + damage;
    return program_->code() == 0 ? CheckFiles(reference) : GoOn(run, reference, figures);
  }

  std::string Describe() const {
    std::string text;
    for (const Victim& victim : victims_) {
      text += fmt::format("{}{}) killed while {}{}", text.empty() ? "" : ", ", victim.Name(), kPhaseNames[victim.phase],
                          victim.lived ? "" : " (it had ended)");
    }
    return text;
  }

 private:
  void Start(const std::string& launch_flags, bool from_start, const fs::path& run = "") {
    const std::string train = from_start ? fmt::format("train {} {} --output=run --suffix=a", mode_.run, mode_.places)
                                         : fmt::format("train --resume={} {}", run.string(), mode_.places);
    started_ = Clock::now();
    program_ = std::make_unique<RunningProgram>(folder_, LineOf(launch_flags, train));
  }

  std::string LineOf(const std::string& launch_flags, const std::string& train) const {
    if (mode_.starter == "alone") return Program() + " " + train;
    if (mode_.starter == "mpirun") {
      return fmt::format("mpirun --bind-to none --oversubscribe --allow-run-as-root -n {} {} {}", mode_.ranks,
                         Program(), train);
    }
    if (mode_.starter == "launch")
      return fmt::format("{} launch --nproc_per_node={} {} {}", Program(), mode_.ranks, launch_flags, train);
    // The launcher of node 1 is a child of that of node 0.
    const auto node = [port = FreePort(), &train, this](int index, const std::string& flags) {
      return fmt::format("{} launch --nnodes=2 --node_rank={} --master_port={} --nproc_per_node={} {} {}", Program(),
                         index, port, mode_.ranks / 2, flags, train);
    };
    return fmt::format("sh -c 'export SWITCHYARD_TOKEN=the.secret.of.these.nodes; {} & exec {}'", node(1, ""),
                       node(0, launch_flags));
  }

  // False: neither happened within the limit, nor has the program ended.
  bool Await(const std::function<bool()>& happened) {
    for (const auto since = Clock::now(); SecondsSince(since) < all_.limit_seconds_; Sleep(0.001)) {
      if (program_->HasEnded() || happened()) return true;
    }
    return false;
  }

  // An mpirun that goes on for 3 s without any of its ranks, as one may whose rank was killed while the ranks met (Open
  // MPI 4.1.4), is ended and counted: that says nothing about them. What it had put into files goes with it.
  bool AwaitEnd(Figures* figures) {
    const bool may_hang = mode_.starter == "mpirun" && IsKilled() && victims_.back().phase <= kBeginning;
    auto had_ranks = Clock::now();
    const auto without_ranks = [&] {
      if (!may_hang) return false;
      const std::vector<pid_t> ranks = ChildrenOf(program_->pid());
      if (!std::all_of(ranks.begin(), ranks.end(), RunningProgram::IsGone)) had_ranks = Clock::now();
      return SecondsSince(had_ranks) > 3;
    };
    if (!Await(without_ranks)) return false;
    if (program_->HasEnded()) return true;
    ++figures->launcher_hangs;
    program_->Signal(SIGKILL);
    if (!Await([] { return false; })) return false;
    for (const auto& entry : fs::directory_iterator(all_.temporary_.path())) fs::remove_all(entry);
    return true;
  }

  // Of a start again, not those before. 0: it has not been started yet.
  pid_t Find(int rank) const {
    if (mode_.starter == "alone") return program_->pid();
    std::vector<pid_t> level = {program_->pid()};
    while (!level.empty()) {
      std::vector<pid_t> below;
      for (const pid_t parent : level) {
        for (const pid_t child : ChildrenOf(parent)) {
          if (IsRank(child, rank) && !before_.contains(child)) return child;
          below.push_back(child);
        }
      }
      level = std::move(below);
    }
    return 0;
  }

  // Of the start whose output begins at `from`.
  void KillOne(Draw& draw, const Reference& reference, size_t from, Figures* figures) {
    const auto begun = from == 0 ? started_ : Clock::now();
    Victim victim;
    victim.rank = draw.Below(mode_.ranks);
    const bool early = draw.Below(3) == 0;
    const int updates = early ? 0 : draw.Below(kUpdates) + 1;
    const double delay = draw.Share() * (early ? reference.begin_seconds : 2 * reference.update_seconds);
    Await([&] { return UpdatesIn(program_->Output().substr(from)) >= updates; });
    Sleep(early ? std::max(0.0, delay - SecondsSince(begun)) : delay);
    Await([&] { return (victim.pid = Find(victim.rank)) > 0; });
    std::set<pid_t> started;  // of which a launcher on another node may still be ending some when the next start begins
    for (int rank = 0; rank < mode_.ranks; ++rank) started.insert(Find(rank));
    before_.merge(started);
    // Stopped first: so it is known whether it lived, and what was going on.
    const int handle = victim.pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, victim.pid, 0)) : -1;
    if (handle >= 0 && (mode_.starter == "alone" || IsRank(victim.pid, victim.rank))) {
      syscall(SYS_pidfd_send_signal, handle, SIGSTOP, nullptr, 0);
      char state = 0;
      for (const auto since = Clock::now(); state != 'T' && state != 'X' && SecondsSince(since) < 5; Sleep(0.0002))
        state = StateOf(victim.pid);
      victim.phase = PhaseOf(program_->Output().substr(from), RunFolder(folder_));
      victim.lived = state == 'T';
      syscall(SYS_pidfd_send_signal, handle, SIGKILL, nullptr, 0);
    }
    if (handle >= 0) close(handle);
    if (victim.lived) {
      ++figures->kills[victim.phase];
    } else {
      ++figures->too_late;
    }
    victims_.push_back(victim);
  }
  bool HasLauncher() const { return mode_.starter == "launch" || mode_.starter == "nodes"; }
  bool IsKilled() const { return !victims_.empty() && victims_.back().lived; }

  std::string CheckEnd(bool restarts, Figures* figures) {
    const std::string output = program_->Output();
    const auto lived = std::count_if(victims_.begin(), victims_.end(), [](const Victim& v) { return v.lived; });
    const bool restarted = output.find(", restart ") != std::string::npos;
    if (restarted) ++figures->restarted;
    if (lived == 0 && program_->code() != 0)
      return fmt::format("the run ended by itself with code {}", program_->code());
    if (lived > 0 && program_->code() == 0 && !restarted) return "the run ended as a success without the killed rank";
    const bool knows_run = !victims_.empty() && victims_[0].lived && victims_[0].phase > kBeginning;
    if (restarts && knows_run && program_->code() != 0) return "the launcher did not start the ranks again";
    if (const std::string words = WrongWords(output, victims_); !words.empty()) return "a wrong culprit: " + words;
    for (const Victim& victim : victims_) {
      if (victim.lived && HasLauncher() && output.find("launch: " + victim.Name()) == std::string::npos)
        return fmt::format("the launcher does not name {})", victim.Name());
    }
    return "";
  }

  std::string EndsWell() {
    if (!Await([] { return false; })) return "hangs";
    return program_->code() == 0 ? "" : fmt::format("fails with code {}", program_->code());
  }

  std::string LeftOver() const {
    for (const auto since = Clock::now(); HasChildren(); Sleep(0.001)) {
      if (SecondsSince(since) < kLastSeconds) continue;
      std::string lines;
      for (const pid_t child : ChildrenOf(getpid())) {
        std::string line = Contents(fmt::format("/proc/{}/cmdline", child));
        std::replace(line.begin(), line.end(), '\0', ' ');
        lines += fmt::format("\n  {} {}", child, line);
      }
      return "processes are left over:" + lines;
    }
    std::string files;
    for (const auto& entry : fs::recursive_directory_iterator(all_.temporary_.path()))
      files += "\n  " + entry.path().string();
    return files.empty() ? "" : "temporary files are left over:" + files;
  }

  std::string CheckFiles(const Reference& reference) const {
    const std::string differing = DifferenceOf(FilesOf(RunFolder(folder_)), reference.files);
    return differing.empty() ? "" : "the files are not those of an uninterrupted run: " + differing;
  }

  std::string GoOn(const fs::path& run, const Reference& reference, Figures* figures) {
    fs::rename(folder_ + "/output.txt", folder_ + "/killed.txt");
    const bool resumes = !run.empty() && ResolveCheckpoint(run).ok();
    ++(resumes ? figures->resumed : figures->anew);
    if (!resumes && !run.empty()) fs::rename(folder_ + "/run", folder_ + "/without-checkpoint");
    Start("", !resumes, run);
    const std::string how = resumes ? "the resumed run " : "the run that begins anew ";
    if (const std::string wrong = EndsWell(); !wrong.empty()) return how + wrong;
    if (const std::string wrong = LeftOver(); !wrong.empty()) return how + "ended, and " + wrong;
    return CheckFiles(reference);
  }

  const KilledRuns& all_;
  const KilledMode& mode_;
  const std::string folder_;
  std::unique_ptr<RunningProgram> program_;
  Clock::time_point started_;
  std::vector<Victim> victims_;
  std::set<pid_t> before_;  // the ranks of starts of which one was killed
};

KilledRuns::KilledRuns(std::string folder, uint64_t seed, double limit_seconds)
    : kept_(std::move(folder)), work_("/dev/shm/switchyard-kills-XXXXXX"), seed_(seed), limit_seconds_(limit_seconds) {
  if (mkdtemp(work_.data()) == nullptr) work_ = kept_ + "/work";
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  setenv("TMPDIR", temporary_.path().c_str(), 1);
  setenv("OMPI_MCA_btl_vader_backing_directory", temporary_.path().c_str(), 1);  // where it has shared memory
  setenv("HWLOC_COMPONENTS", "-opencl", 1);                                      // as tests/cli/program.h says
  for (const char* name : {"HOME", "XDG_CACHE_HOME"}) setenv(name, (work_ + "/home").c_str(), 1);
  for (const char* name : {"SWITCHYARD_DATA", "SWITCHYARD_PLUGIN_PATH", "SWITCHYARD_CPU_DEVICES", "SWITCHYARD_DEVICE",
                           "SWITCHYARD_COLLECTIVE", "RANK", "OMPI_COMM_WORLD_RANK"})
    unsetenv(name);
}

KilledRuns::~KilledRuns() { fs::remove_all(work_); }

const KilledMode& KilledRuns::ModeOf(uint64_t trial, const std::vector<KilledMode>& modes) const {
  std::vector<size_t> order(modes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Draw draw(~seed_, trial / modes.size());
  for (size_t i = order.size(); i-- > 1;)
    std::swap(order[i], order[static_cast<size_t>(draw.Below(static_cast<int>(i + 1)))]);
  return modes[order[trial % modes.size()]];
}

std::string KilledRuns::Try(const KilledMode& mode, uint64_t number) {
  const auto [known, is_new] = references_.try_emplace(mode.name);
  const std::string folder = work_ + "/run";
  std::string wrong, who;
  if (is_new) wrong = Trial(*this, mode, folder).Uninterrupted(&known->second);
  if (wrong.empty()) {
    Trial trial(*this, mode, folder);
    Draw draw(seed_, number);
    wrong = trial.Killed(draw, known->second, &figures_[mode.name]);
    who = trial.Describe();
  }
  if (wrong.empty()) return "";
  const std::string kept = fmt::format("{}/trial-{}-of-{}", kept_, number, seed_);
  fs::remove_all(kept);
  fs::copy(folder, kept, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  return fmt::format("{}, trial {} of seed {}: {}\n  {}\n  its files: {}", mode.name, number, seed_, wrong, who, kept);
}

int KilledRuns::kills() const {
  int sum = 0;
  for (const auto& [name, figures] : figures_) sum += figures.Kills();
  return sum;
}

std::string KilledRuns::Table() const {
  std::string table = fmt::format("{:<29}{:>6}", "mode, ranks", "kills");
  for (const char* phase : kPhaseNames) table += fmt::format("{:>11}", phase);
  table += fmt::format("{:>10}{:>7}{:>14}{:>11}{:>9}{:>6}{:>13}\n", "too late", "hangs", "mpirun hangs", "ended in s",
                       "resumed", "anew", "by launcher");
  const auto row = [&](const std::string& name, const Figures& figures) {
    table += fmt::format("{:<29}{:>6}", name, figures.Kills());
    for (const int kills : figures.kills) table += fmt::format("{:>11}", kills);
    table += fmt::format("{:>10}{:>7}{:>14}{:>11.2f}{:>9}{:>6}{:>13}\n", figures.too_late, figures.hangs,
                         figures.launcher_hangs, figures.slowest, figures.resumed, figures.anew, figures.restarted);
  };
  Figures sum;
  for (const auto& [name, figures] : figures_) {
    row(name, figures);
    sum.Add(figures);
  }
  row("all", sum);
  return table;
}

}  // namespace switchyard
