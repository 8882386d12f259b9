//! A configuration file without its secrets, for people who help. Values of variables were never in it; secrets that
//! the file itself spells out are left out.

use toml::{Table, Value};

/// Settings whose whole value is a secret.
const SECRET_SETTINGS: [&str; 3] = ["token", "tokens", "signing_key"];
const HIDDEN: &str = "***";

/// Returns the settings of a configuration file, comments left out. A file that is no TOML is not shown at all, because
/// its secrets cannot be found.
pub fn configuration(text: &str) -> Result<String, String> {
    let table: Table =
        text.parse().map_err(|error: toml::de::Error| format!("it is not TOML: {}", error.message()))?;
    let redacted = redact(None, Value::Table(table));
    toml::to_string(&redacted).map_err(|error| format!("it cannot be written again: {error}"))
}

fn redact(key: Option<&str>, value: Value) -> Value {
    match value {
        Value::Table(table) => Value::Table(
            table.into_iter().map(|(key, value)| (key.clone(), redact(Some(&key), value))).collect(),
        ),
        Value::Array(values) => Value::Array(values.into_iter().map(|value| redact(key, value)).collect()),
        Value::String(text) => Value::String(redact_text(key, &text)),
        other => other,
    }
}

fn redact_text(key: Option<&str>, text: &str) -> String {
    if is_variable(text) {
        return text.to_owned();
    }
    if key.is_some_and(|key| SECRET_SETTINGS.contains(&key)) {
        return HIDDEN.to_owned();
    }
    without_password(text)
}

/// Returns whether the text is `${NAME}` or `${file:PATH}` and nothing else.
fn is_variable(text: &str) -> bool {
    let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) else { return false };
    let (name, others) = match name.strip_prefix("file:") {
        Some(path) => (path, &b"_-./"[..]),
        None => (name, &b"_"[..]),
    };
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
}

/// Returns an address as `scheme://user:***@host`; hides a text whole that has an `@` and is no address.
fn without_password(text: &str) -> String {
    let Some((account, place)) = text.rsplit_once('@') else { return text.to_owned() };
    let Some((scheme, account)) = account.split_once("://") else { return HIDDEN.to_owned() };
    match account.split_once(':') {
        Some((user, password)) if is_variable(password) => format!("{scheme}://{user}:{password}@{place}"),
        Some((user, _)) => format!("{scheme}://{user}:{HIDDEN}@{place}"),
        None => format!("{scheme}://{account}@{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_token_or_key_stays_and_variables_do() {
        let text = "name = \"x\" # my comment with s3cret\n[log]\nurl = \"nats://a:s3cret@h:4222\"\n[http]\n\
                    tokens = [\"s3cret-token-of-16\", \"${TOKEN}\"]\n[reconcile]\nsigning_key = \"s3cret\"\n\
                    [[sources]]\nurl = \"mysql://u:${PW}@h\"\nsetup_url = \"mysql://u:s3@cret@h\"\n\
                    other = \"u:s3cret@h\"\nfiled = \"mysql://u:${file:/etc/pw-1.txt}@h\"\n\
                    [coupon_system]\ntoken = \"s3cret\"\n[a]\nurl = \"${WHOLE}\"\n";
        let redacted = configuration(text).unwrap();
        assert!(!redacted.contains("s3") && !redacted.contains("cret"), "{redacted}");
        for kept in [
            "nats://a:***@h:4222",
            "mysql://u:${PW}@h",
            "mysql://u:${file:/etc/pw-1.txt}@h",
            "mysql://u:***@h",
            "${TOKEN}",
            "${WHOLE}",
        ] {
            assert!(redacted.contains(kept), "{kept} is not in {redacted}");
        }
    }

    #[test]
    fn a_file_that_is_no_toml_is_not_shown() {
        let error = configuration("url = \"s3cret\" [").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn the_examples_have_no_secret_left() {
        for example in [
            include_str!("../../../deploy/anabranch.example.toml"),
            include_str!("../../../deploy/serial-codes.example.toml"),
            include_str!("../../../deploy/flux.example.toml"),
        ] {
            assert!(example.contains("change-me"));
            assert!(!configuration(example).unwrap().contains("change-me"));
        }
    }
}
