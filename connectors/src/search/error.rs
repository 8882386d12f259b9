//! Makes a [`Fault`] of a cluster's answer: by its status, and by the error's type if a status has several meanings.
//!
//! The type is a fixed word of the server. Its reason is never shown: it quotes values.

use anabranch_pipeline::error::{Code, Fault};
use reqwest::StatusCode;
use serde::Deserialize;

use super::SETUP_COMMAND;

/// The error of a whole answer: an object with a type, or only a text.
#[derive(Debug, Deserialize)]
struct Refusal {
    error: serde_json::Value,
}

/// The part of an error that holds no values.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TypedError {
    #[serde(rename = "type")]
    pub(super) kind: String,
}

/// Error of a write to an index that takes none: its disks are full, or a person blocked it. Its status is 403 or 429.
const WRITE_BLOCK: &str = "cluster_block_exception";

/// Returns the fault of an answer that is no success.
pub(super) fn fault_of(subject: &str, status: StatusCode, body: &[u8]) -> Fault {
    fault(subject, status, &kind_of(body))
}

fn kind_of(body: &[u8]) -> String {
    let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
    let kind = refusal.as_ref().and_then(|refusal| refusal.error["type"].as_str());
    kind.unwrap_or_default().to_owned()
}

/// Returns whether the cluster is only too busy, so that the same request may succeed a moment later. A block of writes
/// has the same status and lasts until a person ends it.
pub(super) fn is_busy(status: StatusCode, kind: &str) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS && kind != WRITE_BLOCK
}

/// Returns [`is_busy`] of a whole answer.
pub(super) fn is_busy_answer(status: StatusCode, body: &[u8]) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS && is_busy(status, &kind_of(body))
}

/// Returns the fault of a status and an error's type.
pub(super) fn fault(subject: &str, status: StatusCode, kind: &str) -> Fault {
    let found = match kind {
        "" => format!("status {}", status.as_u16()),
        kind => format!("status {} ({kind})", status.as_u16()),
    };
    let new = |code| Fault::new(code, subject, found);
    match status {
        StatusCode::UNAUTHORIZED => {
            new(Code::TargetAccessDenied).needs("the user and password of the account")
        }
        // A full disk makes indexes read-only, with the status of a missing privilege or of a busy cluster.
        StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS if kind == WRITE_BLOCK => new(
            Code::TargetUnreachable,
        )
        .needs("an index without a write block")
        .remedy(
            "free space on the cluster's disks, and remove the block `index.blocks.read_only_allow_delete`",
        ),
        StatusCode::FORBIDDEN => new(Code::TargetGrantMissing)
            .remedy("give the account the role of deploy/grants/opensearch-roles.yml"),
        StatusCode::NOT_FOUND => new(Code::TargetTableMissing).remedy(SETUP_COMMAND),
        StatusCode::TOO_MANY_REQUESTS => {
            new(Code::TargetUnreachable).needs("a cluster that keeps up with the writes")
        }
        StatusCode::PAYLOAD_TOO_LARGE => {
            new(Code::TargetRejected).needs("a cluster, or a proxy before it, that takes larger requests")
        }
        status if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT => {
            new(Code::TargetRejected)
        }
        _ => new(Code::TargetUnreachable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_code_and_no_reason_is_shown() {
        let body =
            |kind: &str| format!(r#"{{"error":{{"type":"{kind}","reason":"value 'secret'"}},"status":1}}"#);
        for (status, kind, code) in [
            (401, "", Code::TargetAccessDenied),
            (403, "security_exception", Code::TargetGrantMissing),
            (403, "cluster_block_exception", Code::TargetUnreachable),
            (404, "index_not_found_exception", Code::TargetTableMissing),
            (429, "rejected_execution_exception", Code::TargetUnreachable),
            (429, "cluster_block_exception", Code::TargetUnreachable),
            (400, "mapper_parsing_exception", Code::TargetRejected),
            (413, "", Code::TargetRejected),
            (503, "unavailable_shards_exception", Code::TargetUnreachable),
        ] {
            let fault = fault_of("target s", StatusCode::from_u16(status).unwrap(), body(kind).as_bytes());
            assert_eq!(fault.code(), code, "{fault}");
            assert!(!fault.to_string().contains("secret") && fault.to_string().contains(kind), "{fault}");
        }
        let text = fault_of("target s", StatusCode::UNAUTHORIZED, b"Unauthorized");
        assert_eq!(
            text.to_string(),
            "[target-access-denied] target s: status 401; needed: the user and password of the account"
        );
    }
}
