//! Applications that may ask over HTTP: the token of each, and the parts of the API that it opens.

use std::fmt;

use serde::Deserialize;

use super::Problems;
use super::values::{Expanded, Secret};

/// An application with its token.
#[derive(Debug, Clone)]
pub struct ApplicationConfig {
    /// The name that metrics and logs show.
    pub name: String,
    pub token: Secret,
    pub scopes: Vec<Scope>,
}

/// A part of the HTTP API that a token opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Devices by codes and parts of codes.
    Lookup,
    /// Identifiers of devices.
    Uuids,
    /// Payment documents, and their identifiers.
    Flux,
    /// The begin of a coupon day.
    Dispatch,
    /// Holders of leases and texts of faults in the open endpoints.
    Status,
}

impl Scope {
    pub const ALL: [Self; 5] = [Self::Lookup, Self::Uuids, Self::Flux, Self::Dispatch, Self::Status];
}

/// Formats as the configuration file has it.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lookup => "lookup",
            Self::Uuids => "uuids",
            Self::Flux => "flux",
            Self::Dispatch => "dispatch",
            Self::Status => "status",
        })
    }
}

/// An application as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Application {
    pub(super) name: String,
    pub(super) token: Expanded,
    scopes: Vec<Scope>,
}

/// Returns the applications with a name, and one with every scope for each token without a name.
pub(super) fn resolve(
    tokens: Vec<Expanded>,
    applications: Vec<Application>,
    problems: &mut Problems,
) -> Vec<ApplicationConfig> {
    for application in applications.iter().filter(|application| application.scopes.is_empty()) {
        let found = format!("`{}` has none", application.name);
        problems.add(
            "http.applications.scopes",
            found,
            "one or more of lookup, uuids, flux, dispatch, status",
        );
    }
    let unnamed = tokens.into_iter().zip(1..).map(|(token, number)| ApplicationConfig {
        name: format!("token-{number}"),
        token: Secret::new(token.0),
        scopes: Scope::ALL.to_vec(),
    });
    let named = applications.into_iter().map(|Application { name, token, scopes }| ApplicationConfig {
        name,
        token: Secret::new(token.0),
        scopes,
    });
    let all: Vec<ApplicationConfig> = unnamed.chain(named).collect();
    problems.unique("http.applications.name", all.iter().map(|application| application.name.as_str()));
    all
}
