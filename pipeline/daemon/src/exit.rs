//! Exit codes, on which scripts may rely. The worst thing that happened decides.

use std::process::ExitCode;

use anabranch_pipeline::error::{Class, Code, Fault};

/// Shown by `anabranch --help`.
pub const HELP: &str = "\
Exit codes:
  0   ok
  1   a definite fault: it fails the same way every time, until it is repaired (the code in [brackets] says how:
      `anabranch explain CODE`)
  2   wrong usage or configuration
  3   something is unreachable or failed in a way that may pass; trying again may help
  70  a defect of anabranch itself
  130, 143  ended by a second Ctrl-C or SIGTERM, without an orderly stop
With several faults the worst decides, in the order 70, 2, 1, 3.";

/// Exit codes from harmless to worst, the order of `worst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Success,
    Transient,
    Definite,
    Usage,
    Internal,
}

impl Exit {
    pub fn of(code: Code) -> Self {
        match (code, code.class()) {
            (
                Code::ConfigUnreadable
                | Code::ConfigInvalid
                | Code::FileUnwritable
                | Code::TargetIsSource
                | Code::LookupMalformed
                | Code::LookupUnconfigured
                | Code::FluxIdMalformed
                | Code::FluxParentUnfit
                | Code::FluxUnconfigured
                | Code::FluxDateRefused
                | Code::PlanInvalid
                | Code::CodeUnknown,
                _,
            ) => Exit::Usage,
            (_, Class::Transient) => Exit::Transient,
            (_, Class::Definite) => Exit::Definite,
            (_, Class::Bug) => Exit::Internal,
        }
    }

    /// Returns the worst exit code of the faults; [`Exit::Success`] when there are none.
    pub fn worst<'f>(faults: impl IntoIterator<Item = &'f Fault>) -> Self {
        faults.into_iter().map(|fault| Exit::of(fault.code())).max().unwrap_or(Exit::Success)
    }

    pub fn number(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Definite => 1,
            Exit::Usage => 2,
            Exit::Transient => 3,
            Exit::Internal => 70,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_fault_decides() {
        let fault = |code| Fault::new(code, "thing", "found");
        let (unreachable, format) = (fault(Code::SourceUnreachable), fault(Code::SourceFormatNotRow));
        assert_eq!(Exit::worst([]).number(), 0);
        assert_eq!(Exit::worst([&unreachable]).number(), 3);
        assert_eq!(Exit::worst([&unreachable, &format]).number(), 1);
        assert_eq!(Exit::worst([&format, &fault(Code::ConfigInvalid), &unreachable]).number(), 2);
        assert_eq!(Exit::worst([&fault(Code::Internal), &fault(Code::ConfigInvalid)]).number(), 70);
    }
}
