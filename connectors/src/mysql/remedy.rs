//! Remedies for a target that refuses a statement, by the code of the fault.

use anabranch_pipeline::error::{Code, Fault};

/// The command that creates missing tables and rows.
pub(super) const SETUP_COMMAND: &str = "anabranch --config FILE setup";

/// Adds the remedy to a fault that was made from an error number.
pub(super) fn with_remedy(fault: Fault) -> Fault {
    match fault.code() {
        Code::TargetTableMissing => fault.remedy(SETUP_COMMAND),
        Code::TargetTableShape => fault.remedy("anabranch --config FILE check"),
        Code::TargetGrantMissing => {
            fault.remedy("GRANT what deploy/grants/mariadb-target.sql or mysql-target.sql lists")
        }
        _ => fault,
    }
}
