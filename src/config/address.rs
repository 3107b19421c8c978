//! Where the gRPC services listen, and where their clients connect: a TCP address or a Unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Longest path of a Unix socket: `sun_path` of Linux less the closing zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Mode of a socket when none is given: its owner and its group, which the containers of a pod share by `fsGroup`.
const SOCKET_MODE_DEFAULT: u32 = 0o660;

/// A TCP address or a Unix socket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    /// `127.0.0.1:50151`.
    Tcp(SocketAddr),
    /// `unix:///run/sidewatch/events.sock?mode=0660`.
    Unix {
        /// Absolute path.
        path: PathBuf,
        /// Permissions of the socket file.
        mode: u32,
    },
}

impl Address {
    /// Reads `IP:PORT` or `unix:///PATH?mode=OCTAL`.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("unix:") else {
            return text.parse().map(Address::Tcp).map_err(|_| {
                "must be IP:PORT, such as 127.0.0.1:50151 or [::1]:50151, or unix:///PATH; names are not resolved"
                    .to_owned()
            });
        };
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
        if !path.starts_with('/') || path.ends_with('/') {
            return Err(
                "the path of a socket must be absolute and name a file: unix:///run/sidewatch/events.sock".to_owned()
            );
        }
        if !path.bytes().all(plain) {
            return Err("the path of a socket may hold letters, digits and . _ / - only".to_owned());
        }
        if path.len() > SOCKET_PATH_BYTES_MAX {
            return Err(format!(
                "the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes; this one has {}",
                path.len()
            ));
        }
        let mode = match query {
            None => SOCKET_MODE_DEFAULT,
            Some(query) => {
                let digits =
                    query.strip_prefix("mode=").ok_or("after the path of a socket only ?mode=OCTAL may follow")?;
                u32::from_str_radix(digits, 8)
                    .ok()
                    .filter(|mode| (3..=4).contains(&digits.len()) && *mode <= 0o777 && !digits.starts_with('+'))
                    .ok_or("the mode of a socket is octal, at most 0777, such as 0660")?
            }
        };
        Ok(Address::Unix { path: PathBuf::from(path), mode })
    }

    /// Whether only processes of the same pod can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix { .. } => true,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix { path, mode } => write!(f, "unix://{}?mode={mode:04o}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_back() {
        for text in ["127.0.0.1:50151", "[::1]:1", "unix:///run/a_b.sock?mode=0600"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Address::parse("unix:///a").unwrap(), Address::Unix { path: "/a".into(), mode: 0o660 });
        assert_eq!(Address::parse("unix:/a").unwrap(), Address::parse("unix:///a").unwrap());
    }

    #[test]
    fn bad_addresses_name_the_rule() {
        let long = format!("unix:///{}", "a".repeat(107));
        for (text, rule) in [
            ("localhost:50151", "not resolved"),
            (":50151", "IP:PORT"),
            ("127.0.0.1", "IP:PORT"),
            ("unix://run/a", "absolute"),
            ("unix:///run/", "name a file"),
            ("unix:///a b", "letters"),
            ("unix:///a%20", "letters"),
            (long.as_str(), "at most 107 bytes; this one has 108"),
            ("unix:///a?mode=0999", "octal"),
            ("unix:///a?mode=660660", "octal"),
            ("unix:///a?mode=+77", "octal"),
            ("unix:///a?owner=1", "only ?mode"),
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.contains(rule), "{text}: {error}");
        }
    }
}
