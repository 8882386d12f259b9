//! The binary `anabranch`. Everything is in the library, where tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    anabranch::cli::main()
}
