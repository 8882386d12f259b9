//! The query of mapping rows that also fills the cache with its results.

use anabranch_schemas::serial::StoredCode;
use metrics::counter;

use super::{CACHED_CLAIMS_MAX, encode};
use crate::error::Fault;
use crate::failpoints;
use crate::metrics as names;
use crate::ports::{CacheFill, CodeCache, MappingStore};
use crate::records::{Claims, TimeToLive, Token};

/// Returns the claims of each code, up to `limit`, at most [`CACHED_CLAIMS_MAX`]. It stores complete sets in the cache,
/// unless a change or another fill of the code comes meanwhile. A failure of the cache does not fail the query.
pub async fn fill(
    cache: &impl CodeCache,
    mapping: &impl MappingStore,
    codes: &[StoredCode],
    limit: usize,
    time_to_live: TimeToLive,
) -> Result<Vec<Claims>, Fault> {
    // The token is taken before the query: a change that is committed after it removes the token.
    let tokens = match cache.begin(codes).await {
        Ok(tokens) => tokens,
        Err(fault) => {
            failed(&fault);
            vec![None; codes.len()]
        }
    };
    failpoints::reach("cache-token-taken").await;
    let read = mapping.claims(codes, limit.min(CACHED_CLAIMS_MAX)).await?;
    let fills: Vec<CacheFill> = (codes.iter().zip(&read).zip(&tokens))
        .filter_map(|((code, claims), token)| {
            let token = (*token).filter(|_| !claims.is_cut)?;
            let time_to_live = time_to_live.of(claims.claims.len(), part(token));
            Some(CacheFill { code: code.clone(), token, entry: encode(&claims.claims), time_to_live })
        })
        .collect();
    if !fills.is_empty() {
        match cache.finish(&fills).await {
            Ok(stored) => counter!(names::CACHE_FILLS).increment(stored as u64),
            Err(fault) => failed(&fault),
        }
    }
    if limit < CACHED_CLAIMS_MAX {
        // Removes the tokens of cut sets, so that they do not keep a lookup of whole sets from filling the cache.
        let is_cut = |((_, token), claims): &((&StoredCode, &Option<Token>), &Claims)| {
            token.is_some() && claims.is_cut
        };
        let cut: Vec<StoredCode> = (codes.iter().zip(&tokens).zip(&read))
            .filter(is_cut)
            .map(|((code, _), _)| code.clone())
            .collect();
        if !cut.is_empty()
            && let Err(fault) = cache.invalidate(&cut).await
        {
            failed(&fault);
        }
    }
    Ok(read)
}

/// Maps a random token to a number from 0 to 1.
fn part(token: Token) -> f64 {
    f64::from(token.0 as u32) / f64::from(u32::MAX)
}

fn failed(fault: &Fault) {
    counter!(names::CACHE_FAULTS, "code" => fault.code().as_str()).increment(1);
    tracing::debug!(%fault, "a set could not be stored in the cache");
}
