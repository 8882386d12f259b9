//! Has a person repeat a name before a command removes what nothing brings back.

use std::io::{BufRead, Write as _, stderr, stdin};

use anabranch_pipeline::error::{Code, Fault};

/// The name that a person repeats, and the refusal without it.
pub struct Confirmation<'a> {
    pub code: Code,
    /// The thing, as faults name it.
    pub thing: &'a str,
    pub name: &'a str,
    /// The end of the question that begins with "Type the name of the".
    pub question: &'a str,
}

impl Confirmation<'_> {
    /// Refuses unless the name was `said`, or is typed when the command asks for it.
    pub fn require(&self, said: Option<&str>) -> Result<(), Fault> {
        let said = match said {
            Some(said) => said.to_owned(),
            None => {
                _ = stderr().write_all(format!("Type the name of the {}: ", self.question).as_bytes());
                let mut line = String::new();
                // Without an operator at standard input the line stays empty.
                _ = stdin().lock().read_line(&mut line);
                line.trim().to_owned()
            }
        };
        if said == self.name {
            return Ok(());
        }
        Err(Fault::new(self.code, self.thing, "its name was not confirmed")
            .needs(format!("`--confirm {}`, or the name when it is asked for", self.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_name_confirms() {
        let confirmation = Confirmation {
            code: Code::ReplayRefused,
            thing: "projection birthday",
            name: "birthday",
            question: "projection",
        };
        assert!(confirmation.require(Some("birthday")).is_ok());
        for said in ["", "Birthday", "birthday "] {
            let refused = confirmation.require(Some(said)).unwrap_err().to_string();
            assert!(refused.contains("projection birthday: its name was not confirmed"), "{refused}");
            assert!(refused.contains("`--confirm birthday`"), "{refused}");
        }
    }
}
