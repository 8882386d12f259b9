//! A coupon system over HTTP that gives every coupon at once, by the request for one coupon, and both of its clients:
//! the product's with `batch = false`, and the one of a program written by hand.
//!
//! The coupon system is a part of this process, so its CPU is in that of both clients.

use std::time::Duration;

use anabranch_connectors::coupon_system::{CouponSystemSettings, HttpCouponSystem};
use anabranch_pipeline::config::ServerUrl;
use axum::Router;
use axum::http::header;
use axum::routing::post;
use serde_json::json;
use tokio::net::TcpListener;

use crate::http::Client;

const PATH: &str = "/v1/coupons";
const GIVEN: &str = "{\"outcome\":\"given\"}";

/// Starts the coupon system; returns its port. It serves until the process ends.
pub async fn listen() -> u16 {
    let give = async |_call: String| ([(header::CONTENT_TYPE, "application/json")], GIVEN);
    let router = Router::new().route(PATH, post(give));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

/// The product's client with `batch = false`.
pub fn client(port: u16) -> HttpCouponSystem {
    let url = ServerUrl::try_from(format!("http://127.0.0.1:{port}")).expect("a URL");
    let timeout = Duration::from_secs(10);
    let settings = CouponSystemSettings { url, token: None, ca_file: None, is_batched: false, timeout };
    HttpCouponSystem::new(&settings).expect("plain text needs no authorities")
}

/// Asks for a user's coupon of a year over a kept connection.
pub async fn ask(client: &mut Client, programme: &str, year: i16, user: u64) {
    let occurrence = format!("solar:{year}");
    let call = json!({
        "key": format!("{programme}/{occurrence}/{user}"), "user": user.to_string(), "programme": programme,
        "occurrence": occurrence, "coupon": "cake",
    });
    let answer = client.post(PATH, &call.to_string()).await;
    assert_eq!((answer.status, answer.body), (200, GIVEN.as_bytes()), "the coupon is given");
}
