//! The rotation of secrets as `docs/operation.md` describes it: the new secret beside the old one, a restart, and the
//! old one is removed.

use anabranch_tests::{Daemon, Installation, Plan, until};

use crate::STANDARD;
use crate::faults::{insert, until_derived};

const TABLE: &str = "user_00.user_000";
/// Behind the name of each account: the second account for the same work.
const SECOND: &str = "_2";
const PASSWORD: &str = "of-the-second-account";
/// Tokens of an application and of operators: the old one and the new one.
const TOKENS: [&str; 2] = ["token-of-before-0123", "token-of-after-01234"];
const OPERATORS: [(&str, &str); 2] = [("ann", "operator-of-before"), ("ann-2", "operator-of-after-")];
const KEYS: [&str; 2] = ["signing-key-of-before", "signing-key-of-after-"];
/// Servers with their grants, and the accounts that these make.
const GRANTS: [(&str, &str, &[&str]); 2] = [
    ("source-a", include_str!("../../deploy/grants/mariadb-source.sql"), &["anabranch_capture"]),
    (
        "target",
        include_str!("../../deploy/grants/mariadb-target.sql"),
        &["anabranch_apply", "anabranch_setup"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn accounts_tokens_and_the_signing_key_are_rotated_by_restarts_and_no_change_is_lost() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    configure(&mut installation, &TOKENS[..1], &OPERATORS[..1], KEYS[0]);
    let mut daemon = installation.run();
    insert(&installation, "source-a", TABLE, 1).await;
    until_derived(&installation, 1).await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    installation.command(&["reconcile", "--now"]).await.expect_success();
    let verified = installation.command(&["reconcile", "verify"]).await.expect_success();
    assert!(verified.stdout.contains("every signature right"), "{verified:?}");

    // The new secrets are there beside the old ones, and the daemon is restarted with them.
    second_accounts(&mut installation).await;
    configure(&mut installation, &TOKENS, &OPERATORS, KEYS[1]);
    assert!(daemon.terminate().unwrap().success());
    insert(&installation, "source-a", TABLE, 2).await;
    installation.command(&["setup"]).await.expect_success();
    let mut daemon = installation.run();
    until_derived(&installation, 2).await;
    daemon.until_ready().await;
    for (server, account) in [("source-a", "anabranch_capture"), ("target", "anabranch_apply")] {
        until("the second account works alone", async || {
            let second = format!("{account}{SECOND}");
            connections(&installation, server, &second).await > 0
                && connections(&installation, server, account).await == 0
        })
        .await;
    }
    for number in [0, 1] {
        assert!(takes(&daemon, "/v1/serials/BOX-1", TOKENS[number]).await, "{number}");
        assert!(takes(&daemon, "/v1/operations", OPERATORS[number].1).await, "{number}");
    }
    // The page and `verify` count a report of the old key as broken; the next one is signed with the new key.
    let broken = installation.command(&["reconcile", "verify"]).await;
    assert!(broken.exit_code == 1 && broken.stderr.contains("history-broken"), "{broken:?}");
    installation.command(&["reconcile", "--now"]).await.expect_success();
    installation.command(&["reconcile", "show"]).await.expect_success();

    // The old secrets are removed.
    configure(&mut installation, &TOKENS[1..], &OPERATORS[1..], KEYS[1]);
    assert!(daemon.terminate().unwrap().success());
    let daemon = installation.run();
    daemon.until_ready().await;
    for (number, is_taken) in [(0, false), (1, true)] {
        assert_eq!(takes(&daemon, "/v1/serials/BOX-1", TOKENS[number]).await, is_taken, "{number}");
        assert_eq!(takes(&daemon, "/v1/operations", OPERATORS[number].1).await, is_taken, "{number}");
    }
    insert(&installation, "source-a", TABLE, 3).await;
    until_derived(&installation, 3).await;
    installation.expect_equal().await;
    drop(daemon);
    remove_second_accounts(&installation).await;
}

/// Writes the file with these tokens, operators and this key.
fn configure(
    installation: &mut Installation<'_>,
    tokens: &[&str],
    operators: &[(&str, &str)],
    signing_key: &str,
) {
    let with_tokens = installation.configuration_text_with_http(&format!("tokens = {tokens:?}"));
    let operator = |(name, token): &(&str, &str)| {
        format!("\n[[http.operators]]\nname = \"{name}\"\ntoken = \"{token}\"\n")
    };
    let operators: String = operators.iter().map(operator).collect();
    let reconcile = format!("\n[reconcile]\nsigning_key = \"{signing_key}\"\n");
    installation.write_configuration_text(&(with_tokens + &operators + &reconcile));
}

/// Makes each account a second time from the shipped grants, and puts its address into the environment.
async fn second_accounts(installation: &mut Installation<'_>) {
    remove_second_accounts(installation).await;
    for (name, grants, accounts) in GRANTS {
        let mut sql = grants.replace("{client_host}", "127.0.0.1");
        for password in ["{capture_password}", "{apply_password}", "{setup_password}"] {
            sql = sql.replace(password, PASSWORD);
        }
        for account in accounts {
            sql = sql.replace(&format!("'{account}'"), &format!("'{account}{SECOND}'"));
        }
        installation.execute(name, sql).await;
        let (port, upper) = (installation.server(name).port(), name.to_ascii_uppercase().replace('-', "_"));
        for account in accounts {
            let variable = match account.ends_with("_setup") {
                true => format!("ANABRANCH_{upper}_SETUP_URL"),
                false => format!("ANABRANCH_{upper}_URL"),
            };
            let url = format!("mysql://{account}{SECOND}:{PASSWORD}@127.0.0.1:{port}");
            let variables = installation.environment_mut();
            variables.retain(|(known, _)| *known != variable);
            variables.push((variable, url));
        }
    }
}

async fn remove_second_accounts(installation: &Installation<'_>) {
    for (name, _, accounts) in GRANTS {
        for account in accounts {
            let sql = format!("DROP USER IF EXISTS '{account}{SECOND}'@'127.0.0.1'");
            installation.execute(name, sql).await;
        }
    }
}

/// The number of connections that an account has open on a server.
async fn connections(installation: &Installation<'_>, server: &str, account: &str) -> u64 {
    let sql = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{account}'");
    installation.admin(server).await.first::<u64>("count connections", sql).await.unwrap().unwrap()
}

/// Whether the daemon lets a request with this token in, whatever it answers.
async fn takes(daemon: &Daemon, path: &str, token: &str) -> bool {
    daemon.ask("GET", path, Some(token), "").await.0 != 401
}
