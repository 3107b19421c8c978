//! The protocol of sidewatch as pure state machines.
//!
//! ```text
//! body bytes ─lines─▶ WatchEvent ─▶ feed.step ─▶ journal.append ─▶ session.step ─▶ Frame
//!                        ack ─▶ session ─▶ subscription ─▶ checkpoint ─▶ Lease PUT
//! elector.step ─▶ Gate(epoch, deadline) ◀─ checked just before a frame is handed to its stream
//! ```
//!
//! Nothing in this package reads a clock, opens a socket, starts a task, writes a log or draws a
//! number that was not seeded: the same inputs give the same outputs, which is what makes the
//! simulation in `crates/sim` a test of the shipped code. The rules are in `docs/protocol.md`.
//!
//! The modules stand in the order in which a newcomer should read them.

pub mod invariant;
pub mod limits;
pub mod prng;
pub mod time;

pub mod epoch;
pub mod leadership;
pub mod object;
pub mod resource_version;

pub mod codec;

pub mod feed;
pub mod journal;

pub mod filter;
pub mod frame;
pub mod selector;
pub mod session;
pub mod subscription;

pub mod replica;
pub mod status;

pub mod elector;
pub mod gate;
