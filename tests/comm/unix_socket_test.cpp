#include "lockstep/comm/unix_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "../errors.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

// A process that ends with something unread resets its sockets: what was told then was that a rank
// of another build had connected.
TEST(UnixSocket, ARankThatIsGoneIsNamedWhateverItHadRead) {
  for (const bool unread : {false, true}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    const Fd mine(ends[0]);
    Fd theirs(ends[1]);
    const Fd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
    uint64_t data = 7;
    if (unread) send_with_fd(mine, &data, sizeof data, file.get(), "rank 3");
    theirs.reset();
    const auto soon = deadline_after(seconds(10));
    EXPECT_THAT(message_of(ErrorCode::kPeerLost,
                           [&] { receive_with_fd(mine, &data, sizeof data, soon, "rank 3"); }),
                HasSubstr("rank 3 died while it connected"));
    EXPECT_THAT(message_of(ErrorCode::kPeerLost,
                           [&] { send_with_fd(mine, &data, sizeof data, file.get(), "rank 3"); }),
                HasSubstr("rank 3 died while it connected"));
  }
}

}  // namespace
}  // namespace lockstep::comm
