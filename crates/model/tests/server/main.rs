//! The model's promises, seen from outside: requests in, answers and lines out. What HTTP can show is
//! in the conformance list of the root package; here is what needs time, or a fault, or a look inside.

mod support;

mod lists;
mod time;
mod watches;
mod writes;
