//! The roles of a process: each has some of the tasks.

use clap::ValueEnum;

/// One part of the daemon's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Reads the sources into the log
    Reader,
    /// Applies the log to the targets
    Projector,
    /// Compares both sides by reconcile.schedule, if it is set, and checks changed rows in between
    Reconciler,
    /// Begins the days of coupon programmes, freezes the users who celebrate, and publishes the users who lack a coupon
    Dispatcher,
    /// Asks the coupon system for the coupons
    Granter,
    /// Endpoints for applications over HTTP, if http.tokens is set
    Api,
}

impl Role {
    pub const ALL: [Self; 6] =
        [Self::Reader, Self::Projector, Self::Reconciler, Self::Dispatcher, Self::Granter, Self::Api];

    pub fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Projector => "projector",
            Self::Reconciler => "reconciler",
            Self::Dispatcher => "dispatcher",
            Self::Granter => "granter",
            Self::Api => "api",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns the role that a task belongs to, by the task's name.
    pub fn of_task(task: &str) -> Self {
        match task.split('/').next() {
            Some("reader") => Self::Reader,
            Some("lane" | "cache" | "sweep") => Self::Projector,
            Some("dispatcher") => Self::Dispatcher,
            Some("granter") => Self::Granter,
            Some("uuids") => Self::Api,
            _ => Self::Reconciler,
        }
    }
}

/// Returns the names of roles, for people.
pub fn names(roles: &[Role]) -> String {
    roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coupons::{GRANTER_TASK, dispatcher_task};
    use crate::reconciliations::SCHEDULED;
    use crate::task_names::{MINT_TASK, cache_task, lane_task, reader_task, sweep_task};

    #[test]
    fn each_task_belongs_to_the_role_that_starts_it() {
        let tasks = [
            (reader_task("a"), Role::Reader),
            (lane_task("birthday/target/a/0"), Role::Projector),
            (cache_task("codes"), Role::Projector),
            (sweep_task("documents"), Role::Projector),
            (SCHEDULED.to_owned(), Role::Reconciler),
            ("spot-checks/a".to_owned(), Role::Reconciler),
            (dispatcher_task("birthday"), Role::Dispatcher),
            (GRANTER_TASK.to_owned(), Role::Granter),
            (MINT_TASK.to_owned(), Role::Api),
        ];
        for (task, role) in tasks {
            assert_eq!(Role::of_task(&task), role, "{task}");
        }
        assert!(Role::ALL.iter().all(|role| Role::named(role.name()) == Some(*role)));
    }
}
