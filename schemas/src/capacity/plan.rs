//! A whole plan: the figures of each system in its file, and the claims beside them.

use crate::capacity::claim::{ClaimVerdict, DocumentClaim};
use crate::capacity::compare::{Sharding, shardings};
use crate::capacity::fields::{Fields, Invalid, Setting};
use crate::capacity::serial_codes::Inventory;
use crate::capacity::sheet::{Figure, Sheet, Store};
use crate::capacity::{birthdays, flux, serial_codes};

/// A plan of one or more systems.
#[derive(Debug)]
pub struct Plan {
    pub systems: Vec<System>,
    inventory: Option<Inventory>,
}

/// The figures of one system in the order in which they were computed.
#[derive(Debug)]
pub struct System {
    pub name: &'static str,
    pub figures: Vec<JudgedFigure>,
    pub stores: Vec<Store>,
}

/// A figure with the claims of documents about it.
#[derive(Debug)]
pub struct JudgedFigure {
    pub figure: Figure,
    pub claims: Vec<(DocumentClaim, ClaimVerdict)>,
}

const CLAIMS: &str = "claims";
const SECTIONS: [&str; 3] = [birthdays::SECTION, serial_codes::SECTION, flux::SECTION];
/// Names of figures that the fault of a wrong name lists.
const EXAMPLES: usize = 3;

impl Plan {
    /// Computes every figure of a file; returns all faults of the file together.
    pub fn of(file: &Fields) -> Result<Self, Vec<Invalid>> {
        let mut faults = unknown(file);
        let mut plan = Self { systems: Vec::new(), inventory: None };
        let mut add = |name: &str, computed: Result<Sheet, Vec<Invalid>>| match computed {
            Ok(sheet) => plan.systems.push(System::of(name, sheet)),
            Err(more) => faults.extend(more),
        };
        for name in SECTIONS {
            let Some(Setting::Table(fields)) = file.get(name) else { continue };
            match name {
                birthdays::SECTION => add(name, birthdays::compute(fields)),
                flux::SECTION => add(name, flux::compute(fields)),
                _ => add(
                    name,
                    serial_codes::compute(fields).map(|(sheet, inventory)| {
                        plan.inventory = Some(inventory);
                        sheet
                    }),
                ),
            }
        }
        if faults.is_empty() {
            faults.extend(plan.add_claims(file));
        }
        if faults.is_empty() { Ok(plan) } else { Err(faults) }
    }

    /// Returns a figure by its name, such as `flux.month_tables`.
    pub fn figure(&self, name: &str) -> Option<&JudgedFigure> {
        self.systems.iter().flat_map(|system| &system.figures).find(|judged| judged.figure.name == name)
    }

    /// Returns the costs of each way to shard; `None` for a plan without serial codes.
    pub fn shardings(&self) -> Option<[Sharding; 3]> {
        self.inventory.as_ref().map(shardings)
    }

    fn add_claims(&mut self, file: &Fields) -> Vec<Invalid> {
        let claims = match file.get(CLAIMS) {
            Some(Setting::List(claims)) => claims.as_slice(),
            _ => return Vec::new(),
        };
        let mut faults = Vec::new();
        for (number, claim) in (1..).zip(claims) {
            let Setting::Table(fields) = claim else {
                faults.push(misplaced(CLAIMS, "an entry is not a table"));
                continue;
            };
            match DocumentClaim::read(number, fields) {
                Ok(claim) => faults.extend(self.add_claim(number, claim)),
                Err(more) => faults.extend(more),
            }
        }
        faults
    }

    fn add_claim(&mut self, number: usize, claim: DocumentClaim) -> Option<Invalid> {
        let names: Vec<String> = self
            .systems
            .iter()
            .flat_map(|system| &system.figures)
            .map(|judged| judged.figure.name.clone())
            .collect();
        let mut all = self.systems.iter_mut().flat_map(|system| &mut system.figures);
        match all.find(|judged| judged.figure.name == claim.figure) {
            Some(judged) => {
                let verdict = claim.verdict(&judged.figure);
                judged.claims.push((claim, verdict));
                None
            }
            None => Some(Invalid {
                field: format!("[[claims]] number {number}, figure"),
                found: format!("no figure of this plan is called {:?}", claim.figure),
                expected: format!("a figure, such as {}", names[..names.len().min(EXAMPLES)].join(", ")),
            }),
        }
    }
}

impl System {
    fn of(name: &str, sheet: Sheet) -> Self {
        let name = SECTIONS.into_iter().find(|section| *section == name).expect("every system has a section");
        let figures =
            sheet.figures.into_iter().map(|figure| JudgedFigure { figure, claims: Vec::new() }).collect();
        Self { name, figures, stores: sheet.stores }
    }
}

/// Returns faults of unknown sections, of entries that are no sections, and of a file without any section.
fn unknown(file: &Fields) -> Vec<Invalid> {
    let mut faults = Vec::new();
    for (name, setting) in file {
        match setting {
            Setting::Table(_) if SECTIONS.contains(&name.as_str()) => {}
            Setting::List(_) if name == CLAIMS => {}
            _ if name == CLAIMS => faults.push(misplaced(name, "it is not a list of tables")),
            _ if SECTIONS.contains(&name.as_str()) => faults.push(misplaced(name, "it is not a table")),
            _ => faults.push(misplaced(name, "no such section or field")),
        }
    }
    if !SECTIONS.iter().any(|section| file.contains_key(*section)) {
        faults.push(misplaced("the file", "it has no section of a system"));
    }
    faults
}

fn misplaced(field: &str, found: &str) -> Invalid {
    Invalid {
        field: field.to_owned(),
        found: found.to_owned(),
        expected: "sections [birthdays], [serial_codes], [flux], and entries of [[claims]]".to_owned(),
    }
}
