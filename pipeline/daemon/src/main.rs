//! The binary `anabranch`. All of its code is in the library, where tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    anabranch::cli::main()
}
