//! The key that is traced, and the kinds of rows that it may name: parsed once, for HTTP and command line alike.

use std::time::Duration;

use anabranch_pipeline::config::SourceConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::projections::{Projection, key_of_text};
use anabranch_pipeline::records::{Cell, LaneId};
use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::DIGITS;

use crate::wiring::{Wiring, lanes};

/// Bytes of a key, at most; a uuid has 64, and labels hold a few hundred.
const KEY_BYTES_MAX: usize = 1024;
/// Entities in the order in which a key is taken for one of their keys. Any text may be a code of a device.
const ORDER: [Entity; 3] = [Entity::Flux, Entity::User, Entity::SerialCode];

/// A key to follow. Nothing prints it.
pub struct TraceQuestion {
    key: String,
    projection: Option<String>,
}

/// How long the parts of a trace may take. A part that takes longer is listed as unread.
#[derive(Debug, Clone, Copy)]
pub struct TraceLimits {
    pub(super) log: Duration,
    pub(super) sources: Duration,
    pub(super) stores: Duration,
    /// The wait for lanes that are on their way.
    pub(super) lanes: Duration,
    /// The whole trace.
    pub(super) whole: Duration,
}

impl TraceLimits {
    /// The limits of a request, which the guard of operators' endpoints ends after half a minute.
    pub const REQUEST: Self = Self {
        log: Duration::from_secs(3),
        sources: Duration::from_secs(6),
        stores: Duration::from_secs(8),
        lanes: Duration::from_secs(3),
        whole: Duration::from_secs(25),
    };
    /// The limits of a command, for which a person waits.
    pub const COMMAND: Self = Self {
        log: Duration::from_secs(5),
        sources: Duration::from_secs(20),
        stores: Duration::from_secs(60),
        lanes: Duration::from_secs(3),
        whole: Duration::from_secs(180),
    };
}

/// A projection whose derived rows are traced.
pub(super) struct TracedProjection<'w> {
    pub(super) name: &'w str,
    pub(super) targets: &'w [String],
    pub(super) projection: &'w Projection,
}

/// The part of the configuration that a trace of one entity reads.
pub(super) struct TracedEntity<'w> {
    pub(super) wiring: &'w Wiring,
    pub(super) entity: Entity,
    pub(super) projections: Vec<TracedProjection<'w>>,
    /// Sources that have the entity.
    pub(super) sources: Vec<&'w str>,
}

impl TraceQuestion {
    /// Takes the bytes of a key; a fault that does not repeat them if they are none or no text.
    pub fn new(key: Vec<u8>, projection: Option<String>) -> Result<Self, Fault> {
        if key.len() > KEY_BYTES_MAX {
            return Err(malformed(format!("it has {} bytes", key.len())));
        }
        match String::from_utf8(key) {
            Ok(key) if key.is_empty() => Err(malformed("it is empty")),
            Ok(key) => Ok(Self { key, projection }),
            Err(_) => Err(malformed("its bytes are no text (UTF-8)")),
        }
    }

    /// Returns the entities whose keys have this form, with the key as their derived rows have it.
    pub(super) fn entities<'w>(&self, wiring: &'w Wiring) -> Result<Vec<(TracedEntity<'w>, Cell)>, Fault> {
        let config = wiring.config();
        if let Some(name) = &self.projection
            && !config.projections.iter().any(|known| known.name == *name)
        {
            let known: Vec<&str> = config.projections.iter().map(|known| known.name.as_str()).collect();
            return Err(Fault::new(Code::LookupMalformed, "the projection", "it is not configured")
                .needs(format!("one of {}", known.join(", "))));
        }
        let mut traced = Vec::new();
        for entity in ORDER {
            let of_entity = self.of_entity(wiring, entity)?;
            if let Some(key) = self.key_of(entity)
                && !of_entity.projections.is_empty()
            {
                traced.push((of_entity, key));
            }
        }
        match traced.is_empty() {
            true => Err(malformed("it has the form of no key of the projections that are meant")),
            false => Ok(traced),
        }
    }

    fn of_entity<'w>(&self, wiring: &'w Wiring, entity: Entity) -> Result<TracedEntity<'w>, Fault> {
        let config = wiring.config();
        let mut projections = Vec::new();
        for known in &config.projections {
            let projection = wiring.projection(&known.name)?;
            let is_meant = self.projection.as_ref().is_none_or(|only| *only == known.name);
            if is_meant && projection.entity() == entity {
                projections.push(TracedProjection { name: &known.name, targets: &known.targets, projection });
            }
        }
        let has_entity = |source: &&SourceConfig| source.entities.contains(&entity);
        let sources = config.sources.iter().filter(has_entity).map(|source| source.name.as_str()).collect();
        Ok(TracedEntity { wiring, entity, projections, sources })
    }

    /// Returns the key in the form of the entity's derived rows; `None` if no row of the entity can have it.
    fn key_of(&self, entity: Entity) -> Option<Cell> {
        let has_digits = self.key.len() == DIGITS && self.key.bytes().all(|byte| byte.is_ascii_digit());
        if entity == Entity::Flux && !has_digits {
            return None;
        }
        key_of_text(entity, &self.key)
    }
}

impl TracedEntity<'_> {
    /// Returns the lanes that write the traced derived rows.
    pub(super) fn lanes(&self) -> impl Iterator<Item = LaneId> + '_ {
        let is_traced = move |id: &LaneId| {
            self.projections.iter().any(|traced| traced.name == id.projection)
                && self.sources.contains(&id.source.as_str())
        };
        lanes(self.wiring.config()).into_iter().filter(is_traced)
    }
}

fn malformed(found: impl Into<String>) -> Fault {
    Fault::new(Code::LookupMalformed, "the key", found)
        .needs(format!(
            "1 to {KEY_BYTES_MAX} bytes of text: a user id in decimal, a uuid or code of a device, or the {DIGITS} \
             digits of a payment document"
        ))
        .remedy("write the key as the source row has it; --projection NAME narrows")
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::config::Config;

    use super::*;

    const USERS: &str = include_str!("../../../../deploy/anabranch.example.toml");
    const DEVICES: &str = include_str!("../../../../deploy/serial-codes.example.toml");

    fn entities(configuration: &str, key: &str) -> Result<Vec<Entity>, Fault> {
        let wiring = Wiring::new(Config::parse(configuration).unwrap());
        let question = TraceQuestion::new(key.as_bytes().to_vec(), None)?;
        Ok(question.entities(&wiring)?.into_iter().map(|(traced, _)| traced.entity).collect())
    }

    #[tokio::test]
    async fn the_form_of_a_key_and_the_configuration_decide_whose_key_it_is() {
        assert_eq!(entities(USERS, "7").unwrap(), [Entity::User]);
        assert_eq!(entities(DEVICES, "BOX 7").unwrap(), [Entity::SerialCode]);
        let document = "7".repeat(DIGITS);
        for key in ["07", "-1", "BOX 7", document.as_str()] {
            assert_eq!(entities(USERS, key).unwrap_err().code(), Code::LookupMalformed, "{key}");
        }
    }

    #[tokio::test]
    async fn what_is_no_key_is_refused_without_being_repeated() {
        let refused = |key: &[u8]| TraceQuestion::new(key.to_vec(), None).err().unwrap();
        for key in [&b""[..], &[b'7'; 4096], b"a secret \xff\xfe"] {
            let fault = refused(key);
            assert_eq!(fault.code(), Code::LookupMalformed);
            assert!(!fault.to_string().contains("secret") && !fault.to_string().contains("777"), "{fault}");
        }
        let wiring = Wiring::new(Config::parse(USERS).unwrap());
        let unknown = TraceQuestion::new(b"7".to_vec(), Some("a secret".to_owned())).unwrap();
        let fault = unknown.entities(&wiring).err().unwrap();
        assert!(fault.code() == Code::LookupMalformed && !fault.to_string().contains("secret"), "{fault}");
    }
}
