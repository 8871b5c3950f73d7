//! Connection loss: has the system find out about connections that are lost without a word.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// The system probes a connection over which nothing has come for so long, so often, once in the last time.
const ASKED_AFTER: Duration = Duration::from_secs(5);
const ASKED_MOST: u32 = 5;
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// A connection has ended if what was sent over it has not arrived for so long.
#[cfg(target_os = "linux")]
const ARRIVES_WITHIN: Duration = Duration::from_secs(20);

/// Has the system find out about a connection that a router has forgotten, or whose other machine has lost its
/// power. This side then sees its end.
pub(super) fn notice_loss(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, ASKED_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, ASKED_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, ASKED_MOST)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(socket, ARRIVES_WITHIN.as_millis() as u32)?;
    Ok(())
}
