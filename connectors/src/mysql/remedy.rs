//! What repairs a target that refuses something, by the code of the fault.

use anabranch_pipeline::error::{Code, Fault};

/// What makes every missing table and row that may be made.
pub(super) const SETUP_COMMAND: &str = "anabranch --config FILE setup";

/// Adds what repairs it to a fault that an error number made.
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
