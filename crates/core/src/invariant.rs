//! Assertions that stay on in production and carry the number of the promise they guard.

/// Panics with the invariant's number (docs/protocol.md, D.8) when `$holds` is false.
///
/// On in every build: a broken promise must end the task, where the supervisor sees it, and not
/// reach a consumer.
#[macro_export]
macro_rules! invariant {
    ($name:ident, $holds:expr, $($why:tt)+) => {
        assert!($holds, "invariant {} broken: {}", stringify!($name), format_args!($($why)+))
    };
}
