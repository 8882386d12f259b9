//! The operator who runs a command, for registers that keep the name.

/// Returns `user@host` of this process.
pub fn user_at_host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = std::env::var("USER").unwrap_or_else(|_| "somebody".to_owned());
    format!("{user}@{}", host.trim())
}
