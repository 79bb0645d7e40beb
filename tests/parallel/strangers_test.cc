// Who is let into a meeting, and what the others cost: ranks as threads, visitors beside them.
#include "core/runtime/processes/strangers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <thread>

#include "core/base/environment.h"
#include "core/base/secret.h"
#include "core/runtime/processes/meeting.h"
#include "core/runtime/processes/rank_meeting.h"
#include "core/runtime/processes/relay.h"
#include "core/runtime/processes/token.h"
#include "tests/data/files_for_tests.h"
#include "tests/parallel/visitor.h"

namespace {
std::atomic<bool> kernel_refuses = false;
}

// In place of the C library's: a kernel that may have no getrandom(2).
extern "C" ssize_t getrandom(void* bytes, size_t count, unsigned flags) {
  if (!kernel_refuses) return syscall(SYS_getrandom, bytes, count, flags);
  errno = ENOSYS;
  return -1;
}

namespace switchyard {
namespace {

using testing::HasSubstr;

// --- the digests ---

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

TEST(Sha256, AgreesWithTheVectorsOfTheStandard) {  // FIPS 180-4 and NIST's example values; NESSIE's million of a
  EXPECT_EQ(Hexadecimal(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hexadecimal(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hexadecimal(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      Hexadecimal(Sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
                         "lmnopqrsmnopqrstnopqrstu")),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(Hexadecimal(Sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(Hexadecimal(Sha256(FromHex("bd"))), "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
  EXPECT_EQ(Hexadecimal(Sha256(std::string(55, '\0'))),
            "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
  EXPECT_EQ(Hexadecimal(Sha256(std::string(56, '\0'))),
            "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
  EXPECT_EQ(Hexadecimal(Sha256(std::string(64, '\0'))),
            "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
}

TEST(HmacSha256, AgreesWithRfc4231) {
  EXPECT_EQ(Hexadecimal(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hexadecimal(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hexadecimal(HmacSha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(Hexadecimal(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Proofs, DependOnTokenSideNoncesAndEveryField) {
  const auto proof = [](Side side, const char* token, const char* holder, const char* visitor,
                        const std::vector<std::string>& hello) { return Proof(side, token, holder, visitor, hello); };
  const std::string right = proof(Side::kVisitor, "t", "h", "v", {"a", "bc"});
  EXPECT_TRUE(SameDigest(right, proof(Side::kVisitor, "t", "h", "v", {"a", "bc"})));
  for (const std::string& other :
       {proof(Side::kHolder, "t", "h", "v", {"a", "bc"}), proof(Side::kVisitor, "u", "h", "v", {"a", "bc"}),
        proof(Side::kVisitor, "t", "v", "h", {"a", "bc"}), proof(Side::kVisitor, "t", "h", "v", {"ab", "c"}),
        proof(Side::kVisitor, "t", "h", "v", {"a", "bd"}), std::string()})
    EXPECT_FALSE(SameDigest(right, other));
  EXPECT_NE(*NewNonce(), *NewNonce());
}

TEST(Secret, WithoutRandomBytesNothingIsSecretAndRanksDoNotMeet) {
  kernel_refuses = true;
  const auto bytes = RandomBytes(8), token = RandomToken(), nonce = NewNonce();
  ProcessMap alone;
  const auto meeting = MeetRanks(alone, 1000);
  kernel_refuses = false;
  for (const Status& status : {bytes.status(), token.status(), nonce.status(), meeting.status()})
    EXPECT_THAT(Message(status), HasSubstr("the kernel gives no random bytes (getrandom: Function not implemented)"));
  EXPECT_EQ(RandomBytes(8)->size(), 8u);
}

// --- tokens ---

class Token : public testing::Test {
 protected:
  Token() : home_(Environment("HOME").value_or("/")), cache_(UserCacheFolder() + "/..") {
    for (const char* name : {"SWITCHYARD_TOKEN", "SWITCHYARD_TOKEN_FILE"}) unsetenv(name);
    setenv("HOME", folder_.path().c_str(), 1);
    setenv("XDG_CACHE_HOME", (folder_.path() + "/cache").c_str(), 1);
  }
  ~Token() override {
    for (const char* name : {"SWITCHYARD_TOKEN", "SWITCHYARD_TOKEN_FILE"}) unsetenv(name);
    setenv("HOME", home_.c_str(), 1);
    setenv("XDG_CACHE_HOME", cache_.c_str(), 1);
  }
  std::string Write(const std::string& name, const std::string& text, mode_t mode) const {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  const std::string home_, cache_;
  TemporaryFolder folder_;
};

TEST_F(Token, IsNeededBeyondTheLoopbackAndTheMessageSaysHowToMakeOne) {
  const auto none = FindToken(false);
  EXPECT_THAT(Message(none.status()), HasSubstr("needs a token"));
  EXPECT_THAT(Message(none.status()), HasSubstr("/dev/urandom | base64 > ~/.switchyard_token"));
  Write(".switchyard_token", "the secret of this user\n", 0600);
  EXPECT_EQ(*FindToken(false), "the secret of this user");
  setenv("SWITCHYARD_TOKEN_FILE", Write("other", "  another secret of them \n", 0400).c_str(), 1);
  EXPECT_EQ(*FindToken(false), "another secret of them");
  setenv("SWITCHYARD_TOKEN", "a secret in a variable", 1);
  EXPECT_EQ(*FindToken(false), "a secret in a variable");
  EXPECT_EQ(*FindToken(false, Write("named", "a secret in a named file", 0600)), "a secret in a named file");
}

TEST_F(Token, ThatCanBeReadOrGuessedIsRefused) {
  EXPECT_THAT(Message(FindToken(false, Write("open", "a secret for everybody", 0640)).status()),
              HasSubstr("others may read this token; make it yours alone: chmod 600"));
  EXPECT_THAT(Message(FindToken(false, Write("short", "fifteen letters\n", 0600)).status()),
              HasSubstr("a token of 15 characters can be guessed, expected at least 16"));
  EXPECT_THAT(Message(FindToken(false, folder_.path()).status()), HasSubstr("expected a regular file"));
  EXPECT_THAT(Message(FindToken(false, folder_.path() + "/none").status()), HasSubstr("no such file"));
  EXPECT_THAT(Message(FindToken(false, "").status()), HasSubstr("the name of the file with the token is empty"));
  EXPECT_EQ(mkfifo((folder_.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(Message(FindToken(false, folder_.path() + "/fifo").status()), HasSubstr("expected a regular file"));
  setenv("SWITCHYARD_TOKEN", "job-7", 1);
  EXPECT_THAT(Message(FindToken(true).status()), HasSubstr("SWITCHYARD_TOKEN: a token of 5 characters"));
}

TEST_F(Token, OnTheLoopbackIsTheUsersOwnWhoeverMakesItFirst) {
  std::vector<std::string> found(8);
  std::vector<std::thread> threads;
  for (std::string& token : found) {
    threads.emplace_back([&token] { token = FindToken(true).value_or("none"); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found[0].size(), 32u);
  for (const std::string& token : found) EXPECT_EQ(token, found[0]);
  struct stat info {};
  ASSERT_EQ(stat((folder_.path() + "/cache/switchyard/token").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path() + "/cache/switchyard"), {}), 1);
}

// --- meetings ---

constexpr char kToken[] = "the token of this run";

// A meeting of two, whose second member comes when told to; strangers come in between.
class MeetingOfTwo : public testing::Test {
 protected:
  using Members = std::vector<Member>;
  static MeetingDeadline In(int ms) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms); }
  static MeetingTerms Terms(const std::string& token = kToken) { return {"rank", 2, token, "look"}; }

  MeetingOfTwo() : listener_(*ListenOn("127.0.0.1", 0)), port_(*PortOf(listener_)) {}
  ~MeetingOfTwo() override {
    if (holder_.joinable()) holder_.join();
    if (listener_ >= 0) close(listener_);
  }
  void Hold(int limit_ms = 20000) {
    holder_ = std::thread([this, limit_ms] {
      Members members = {{"here", 1, "a"}};
      const auto links = HoldMeeting(Terms(), listener_, In(limit_ms), &members);
      held_ = links.status();
      if (links.ok()) {
        EXPECT_EQ(members[1].pid, 2);
      }
    });
  }
  static Status Attend(int port, int limit_ms = 10000, const std::string& token = kToken) {
    Members members;
    const auto link = AttendMeeting(Terms(token), 1, {"there", 2, "b"}, {"127.0.0.1"}, port, In(limit_ms), &members);
    if (link.ok()) {
      EXPECT_EQ(members.size(), 2u);
    }
    return link.status();
  }
  void ExpectThatTheMemberIsLetIn() {
    const Status attended = Attend(port_);
    EXPECT_TRUE(attended.ok()) << Message(attended);
    holder_.join();
    EXPECT_TRUE(held_.ok()) << Message(held_);
  }

  int listener_, port_;
  std::thread holder_;
  Status held_;
};

std::string Header(uint32_t type, uint32_t fields, uint32_t bytes) {
  std::string header = "SYLK";
  for (const uint32_t number : {type, fields, bytes}) header.append(reinterpret_cast<const char*>(&number), 4);
  return header;
}

TEST_F(MeetingOfTwo, StrangersOfEveryKindAreSentAwayAndDisturbNobody) {
  Hold();
  Visitor silent(port_);
  const auto hello = [](const char* version = "0.0.9/1") { return Visitor::Hello("rank", 1, 2, "x", version); };
  // Each with what it says, for which it is sent away at once.
  const std::vector<std::pair<const char*, std::function<void(Visitor&)>>> strangers = {
      {"garbage", [](Visitor& v) { v.Say(std::string(5000, 'G')); }},
      {"a frame that is too long", [](Visitor& v) { v.Say(Header(1, 1, 15 << 20) + std::string(100000, 'x')); }},
      {"a length of 4 GiB", [](Visitor& v) { v.Say(Header(1, 1, 0xFFFFFFFF)); }},
      {"another message",
       [](Visitor& v) {
         v.Say(MessageType::kPut, {"key", "value"});
       }},
      {"no proof, another version", [&](Visitor& v) { v.Say(MessageType::kHello, hello()); }},
      {"a hello as it once was",
       [](Visitor& v) {
         v.Say(MessageType::kHello, {"rank", "", "0.0.9/1", "1", "2", "old-host", "4711", "node"});
       }},
      {"no token", [&](Visitor& v) { v.Greet("", hello()); }},
      {"a wrong token", [&](Visitor& v) { v.Greet("the token of that run", Visitor::Hello("rank", 1, 2, "x")); }},
      {"the token for another meeting", [](Visitor& v) { v.Greet(kToken, Visitor::Hello("node", 1, 2, "x")); }},
      {"its own challenge sent back",
       [](Visitor& v) {
         const auto challenge = v.Hear();
         std::vector<std::string> fields = {challenge->fields[0], challenge->fields[0]};
         for (const std::string& field : Visitor::Hello("rank", 1, 2, "x")) fields.push_back(field);
         v.Say(MessageType::kHello, fields);
       }},
  };
  for (const auto& [what, speak] : strangers) {
    Visitor stranger(port_);
    ASSERT_TRUE(stranger.connected()) << what;
    speak(stranger);
    const int64_t ms = stranger.WaitUntilClosed(4000);
    EXPECT_GE(ms, 0) << what << " was not sent away";
    EXPECT_LT(ms, 3000) << what;
  }
  Visitor slow(port_);
  slow.Say(Header(1, 1, 100) + "half a hello");
  EXPECT_GE(silent.WaitUntilClosed(7000), 0) << "who says nothing is not sent away";
  EXPECT_GE(slow.WaitUntilClosed(7000), 0) << "who says half is not sent away";
  ExpectThatTheMemberIsLetIn();
}

// Rank 1 relays for rank 2, which comes late; strangers know the name of the relay's socket, but not the token.
TEST(MeetingThroughARelay, StrangersOfEveryKindAreSentAwayAndDisturbNobody) {
  const MeetingTerms terms{"rank", 3, kToken, "look"};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const int listener = *ListenOn("127.0.0.1", 0), port = *PortOf(listener);
  const std::string node = fmt::format("node of {}", port),
                    name = "switchyard-" + Hexadecimal(HmacSha256(kToken, "switchyard relay " + node));
  std::thread holder([&] {
    std::vector<Member> members = {{"here", 1, "a"}};
    const auto links = HoldMeeting(terms, listener, deadline, &members);
    EXPECT_TRUE(links.ok()) << Message(links.status());
    if (!links.ok()) return;
    EXPECT_EQ(members[2].via, 1) << "rank 2 went past the relay";
    EXPECT_EQ((*links)[2], nullptr);
  });
  const auto attend = [&](int number) {
    std::vector<Member> members;
    const auto links = AttendThroughRelay(terms, number, {"there", 10 + number, "b", number}, {"127.0.0.1"}, port, node,
                                          deadline, &members);
    EXPECT_TRUE(links.ok()) << Message(links.status());
    if (links.ok()) {
      EXPECT_EQ(members.size(), 3u);
    }
  };
  std::thread relay([&] { attend(1); });
  Visitor silent(name);
  EXPECT_TRUE(silent.connected());
  std::vector<std::unique_ptr<Visitor>> idle;  // more than there are places
  for (int i = 0; i < 300; ++i) idle.push_back(std::make_unique<Visitor>(name, 100));
  const std::vector<std::pair<const char*, std::function<void(Visitor&)>>> strangers = {
      {"garbage", [](Visitor& v) { v.Say(std::string(5000, 'G')); }},
      {"a length of 4 GiB", [](Visitor& v) { v.Say(Header(1, 1, 0xFFFFFFFF)); }},
      {"a message of those who are in", [](Visitor& v) { v.Say(MessageType::kFailure, {"the end"}); }},
      {"no token", [](Visitor& v) { v.Greet("", Visitor::Hello("rank", 2, 3, "b")); }},
      {"a wrong token", [](Visitor& v) { v.Greet("the token of that run", Visitor::Hello("rank", 2, 3, "b")); }},
      {"the token for another meeting", [](Visitor& v) { v.Greet(kToken, Visitor::Hello("node", 2, 3, "b")); }},
  };
  for (const auto& [what, speak] : strangers) {
    Visitor stranger(name);
    EXPECT_TRUE(stranger.connected()) << what;
    speak(stranger);
    EXPECT_GE(stranger.WaitUntilClosed(6000), 0) << what << " was not sent away";
  }
  EXPECT_GE(silent.WaitUntilClosed(7000), 0) << "who says nothing is not sent away";
  std::thread neighbour([&] { attend(2); });
  for (std::thread* thread : {&neighbour, &relay, &holder}) thread->join();
  close(listener);
}

// Rank 0 begins when rank 1, which relays, has used most of its own time; rank 2 does not come, and is named by both.
TEST(MeetingThroughARelay, WaitsForOthersAsLongAsWhoHoldsTheMeeting) {
  const MeetingTerms terms{"rank", 3, kToken, "look"};
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(3000); };
  const int listener = *ListenOn("127.0.0.1", 0), port = *PortOf(listener);
  std::string held, attended;
  std::thread relay([&, deadline = soon()] {
    std::vector<Member> members;
    attended = Message(AttendThroughRelay(terms, 1, {"there", 11, "b", 1}, {"127.0.0.1"}, port,
                                          fmt::format("node of {}", port), deadline, &members)
                           .status());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  std::vector<Member> members = {{"here", 1, "a"}};
  held = Message(HoldMeeting(terms, listener, soon(), &members).status());
  close(listener);
  relay.join();
  EXPECT_THAT(held, HasSubstr("rank 2"));
  EXPECT_THAT(attended, HasSubstr("rank 2"));
  EXPECT_THAT(attended, testing::Not(HasSubstr("does not answer")));
}

TEST_F(MeetingOfTwo, WhatAMemberSaidIsOfNoUseToWhoHeardIt) {
  // A member says its hello to a stranger that listens where the holder was.
  const int elsewhere = *ListenOn("127.0.0.1", 0);
  std::thread member(
      [port = *PortOf(elsewhere)] { EXPECT_THAT(Message(Attend(port, 300)), HasSubstr("closed the connection")); });
  pollfd waiting{elsewhere, POLLIN, 0};
  poll(&waiting, 1, 5000);
  std::vector<Frame> heard;
  {
    MessageLink link(AcceptFrom(elsewhere));
    link.Send(MessageType::kChallenge, {*NewNonce()});
    link.Flush();
    for (int waited = 0; waited < 5000 && heard.empty() && link.Receive(&heard, 1); ++waited) usleep(1000);
    ASSERT_EQ(heard.size(), 1u);
    // Whoever listens there has no token, and cannot make the member believe that it has: not with the member's own
    // proof either.
    link.Send(MessageType::kProof, {heard[0].fields[1]});
    link.Send(MessageType::kFailure, {"go home"});
    link.Flush();
    usleep(100000);
  }
  close(elsewhere);
  member.join();
  for (const std::string& field : heard[0].fields) EXPECT_EQ(field.find(kToken), std::string::npos);

  Hold();
  Visitor replay(port_);
  ASSERT_TRUE(replay.Hear());
  replay.Say(MessageType::kHello, heard[0].fields);
  EXPECT_GE(replay.WaitUntilClosed(3000), 0) << "a replayed hello was let in";
  ExpectThatTheMemberIsLetIn();
}

TEST_F(MeetingOfTwo, AMemberOfAnotherVersionEndsItWithTheToken) {
  Hold();
  Visitor member(port_);
  member.Greet(kToken, Visitor::Hello("rank", 1, 2, "x", "0.0.9/1"));
  const auto proof = member.Hear(), failure = member.Hear();
  ASSERT_TRUE(proof && failure);
  EXPECT_EQ(proof->type, MessageType::kProof);
  EXPECT_THAT(failure->fields[0], HasSubstr("runs version 0.0.9/1"));
  holder_.join();
  EXPECT_THAT(Message(held_), HasSubstr("rank 1 (pid 4711 on host old-host) runs version 0.0.9/1"));
}

TEST_F(MeetingOfTwo, ManyAtOnceWithFewDescriptorsNeitherKeepAMemberOutNorTakeTime) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  std::vector<std::unique_ptr<Visitor>> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(std::make_unique<Visitor>(port_));  // they wait in the backlog
    if (i % 3 == 0) strangers.back()->Say(Header(1, 1, 2000) + "half a hello");
  }
  // The process has descriptors for a handful of them only: those of the strangers are ours too.
  const rlimit few{static_cast<rlim_t>(dup(0)) + 12, before.rlim_max};
  close(static_cast<int>(few.rlim_cur) - 12);
  const int spare = dup(0);
  setrlimit(RLIMIT_NOFILE, &few);
  close(spare);
  const auto cpu_ms = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
  };
  const auto used = cpu_ms();
  Hold(30000);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_LT(cpu_ms() - used, 750) << "it spins while descriptors are used up";
  const Status attended = Attend(port_, 25000);
  EXPECT_TRUE(attended.ok()) << Message(attended);
  holder_.join();
  EXPECT_TRUE(held_.ok()) << Message(held_);
  setrlimit(RLIMIT_NOFILE, &before);
}

// --- where some are enough ---

class MeetingOfSome : public testing::Test {
 protected:
  static MeetingDeadline In(int ms) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms); }
  ~MeetingOfSome() override { close(listener_); }
  void Hold(int limit_ms) {
    const auto links = HoldMeeting(terms_, listener_, In(limit_ms), &members_);
    EXPECT_TRUE(links.ok()) << Message(links.status());
  }
  void Attend(int number, int limit_ms) const {
    std::vector<Member> members;
    const auto link = AttendMeeting(terms_, number, {"there", 10 + number, "1", number}, {"127.0.0.1"}, port_,
                                    In(limit_ms), &members);
    EXPECT_TRUE(link.ok()) << Message(link.status());
  }
  const MeetingTerms terms_{"node", 3, kToken, "look", 2};  // of three two are enough
  const int listener_ = *ListenOn("127.0.0.1", 0), port_ = *PortOf(listener_);
  std::vector<Member> members_ = {{"here", 1, "1"}};
};

TEST_F(MeetingOfSome, OneThatLeavesWhileTheyGatherMayComeAgainAndOthersMayGoOnWithoutIt) {
  for (const bool comes_again : {true, false}) {
    std::thread holder([&] { Hold(comes_again ? 20000 : 2000); });
    {
      Visitor leaver(port_);
      leaver.Greet(kToken, Visitor::Hello("node", 1, 3, "1"));
      EXPECT_TRUE(leaver.Hear()) << "it was not let in";
    }
    std::thread again([&] {
      if (comes_again) Attend(1, 20000);
    });
    Attend(2, 20000);
    for (std::thread* thread : {&again, &holder}) thread->join();
    EXPECT_EQ(members_[1].pid, comes_again ? 11 : 0);
    EXPECT_EQ(members_[2].pid, 12);
    members_.resize(1);
  }
}

// Its own patience, counted from when it began, would be at its end.
TEST_F(MeetingOfSome, WhoWasLetInWaitsForOneThatBeganLater) {
  std::thread early([&] { Attend(1, 2000); });
  std::this_thread::sleep_for(std::chrono::milliseconds(1800));
  Hold(3000);
  early.join();
  EXPECT_EQ(members_[1].pid, 11);
}

// A member that lost patience and comes again is not taken for one that has died.
TEST(Strangers, WhoHasSpokenAndGoneDoesNotArrive) {
  const int listener = *ListenOn("127.0.0.1", 0);
  Strangers strangers(listener);
  for (const bool stays : {false, true}) {
    auto visitor = std::make_unique<Visitor>(*PortOf(listener));
    EXPECT_TRUE(strangers.Serve().empty());
    visitor->Say(MessageType::kHello, {"here I am"});
    if (!stays) visitor.reset();
    usleep(20000);
    EXPECT_EQ(strangers.Serve().size(), stays ? 1u : 0u);
  }
  close(listener);
}

TEST(Strangers, HoldLittleMemory) {
  const int listener = *ListenOn("127.0.0.1", 0);
  Strangers strangers(listener);
  Visitor visitor(*PortOf(listener));
  // As much as is taken of a frame that is as long as it may be, and never ends.
  visitor.Say(Header(1, 1, kLargestFrameOfStrangers));
  size_t taken = 0;
  const std::string piece(1024, 'x');
  for (int round = 0; round < 1000; ++round) {
    visitor.Say(piece);
    for (const auto& arrival : strangers.Serve()) taken += arrival.first.fields.size();
    if (visitor.WaitUntilClosed(0) >= 0) break;
  }
  EXPECT_EQ(taken, 0u);
  EXPECT_GE(visitor.WaitUntilClosed(1000), 0) << "a stranger may send without end";
  close(listener);
}

}  // namespace
}  // namespace switchyard
