//! New rows of a site's entity, as many as reconciliations and loads are measured over.

use anabranch_schemas::change::Entity;

use crate::Scale;
use crate::data::{self, Data};
use crate::devices::Devices;
use crate::recharges::Recharges;
use crate::site::Site;
use crate::users::Users;

/// Writes new users, devices or payment documents into a new binlog.
pub async fn write(site: &Site<'_>, scale: &Scale) -> Data {
    let seed = scale.seed;
    match site.entity {
        Entity::User => data::write(site, Users::NEW, (scale.users, seed), Users::arriving()).await,
        Entity::SerialCode => {
            data::write(site, Devices::NEW, (scale.devices, seed), Devices::arriving()).await
        }
        Entity::Flux => {
            data::write(site, Recharges::NEW, (scale.flux_changes, seed), Recharges::arriving()).await
        }
    }
}
