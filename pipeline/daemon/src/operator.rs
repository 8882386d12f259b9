//! The account that runs this process, for records and registers that keep the name.

/// Returns the account's name.
pub fn user() -> String {
    std::env::var("USER").unwrap_or_else(|_| "somebody".to_owned())
}

/// Returns the name of this machine.
pub fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

/// Returns `user@host` of this process.
pub fn user_at_host() -> String {
    format!("{}@{}", user(), host())
}
