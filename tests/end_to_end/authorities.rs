//! The certificates that are trusted on every connection to a database: those of `ca_file` alone, or the machine's.

use std::fs;

use anabranch_tests::{Installation, Plan};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::Value as Json;

use crate::STANDARD;

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_file_is_trusted_alone_and_the_machines_authorities_where_they_are_asked_for() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    // The machine trusts the authority of the servers' certificates.
    let (text, trusted) = (installation.configuration_text(), installation.stack().ca_file());
    let trusted = trusted.to_str().unwrap().to_owned();
    installation.environment_mut().push(("SSL_CERT_FILE".to_owned(), trusted.clone()));
    let of_databases = |line: &str| {
        // The settings of the log come before the first database.
        let (before, databases) = text.split_once("[[sources]]").unwrap();
        let replaced = databases.replace(&format!("ca_file = \"{trusted}\""), line);
        assert_ne!(replaced, databases);
        format!("{before}[[sources]]{replaced}")
    };

    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ca.pem");
    fs::write(&ours, authority()).unwrap();
    installation.write_configuration_text(&of_databases(&format!("ca_file = {ours:?}")));
    let check = installation.command(&["check", "--json"]).await.json();
    for (thing, code) in [
        ("source source-a", "source-access-denied"),
        ("source source-b", "source-access-denied"),
        ("target target", "target-access-denied"),
    ] {
        let is_refused = |fault: &Json| fault["subject"] == thing && fault["code"] == code;
        assert!(check["faults"].as_array().unwrap().iter().any(is_refused), "{thing}: {check:#}");
    }
    let status = installation.command(&["status", "--json"]).await.json();
    for view in [&status["sources"], &status["lanes"]].into_iter().flat_map(|list| list.as_array().unwrap()) {
        assert!(view["code"].as_str().is_some_and(|code| code.ends_with("-access-denied")), "{view:#}");
    }

    installation.write_configuration_text(&of_databases("tls = \"system\""));
    installation.command(&["check"]).await.expect_success();
    installation.command(&["status"]).await.expect_success();
}

/// A certificate of an authority that has signed nothing.
fn authority() -> String {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}
