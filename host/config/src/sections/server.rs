//! `[server]`: the listeners, and that nothing but loopback is served without keys. Binds nothing.

use std::net::{IpAddr, SocketAddr};

use super::origins;
use crate::defaults;
use crate::digest::OF_NOTHING;
use crate::reader::Section;
use crate::{AdminAccess, ErrorKind, LogFormat, LogLevel, Server, Tenant, TenantAccess};

pub(super) fn read(section: &mut Section<'_, '_>, tenants: &[Tenant]) -> Server {
    const LEVELS: [(&str, LogLevel); 5] = [
        ("info", LogLevel::Info),
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
    let server = Server {
        listen: section.address("listen", defaults::LISTEN),
        admin_listen: section.address("admin_listen", defaults::ADMIN_LISTEN),
        admin: section.digest("admin_key_sha256").map_or(AdminAccess::Open, AdminAccess::Key),
        max_body_bytes: section.number("max_body_bytes", defaults::MAX_BODY_BYTES),
        max_header_bytes: section.count("max_header_bytes", defaults::MAX_HEADER_BYTES),
        header_timeout_ms: section.number("header_timeout_ms", defaults::HEADER_TIMEOUT_MS),
        body_timeout_ms: section.number("body_timeout_ms", defaults::BODY_TIMEOUT_MS),
        request_timeout_ms: section.number("request_timeout_ms", defaults::REQUEST_TIMEOUT_MS),
        max_connections: section.count("max_connections", defaults::MAX_CONNECTIONS),
        allowed_origins: origins::read(section),
        max_admin_connections: section.count("max_admin_connections", defaults::MAX_ADMIN_CONNECTIONS),
        drain_timeout_ms: section.number("drain_timeout_ms", defaults::DRAIN_TIMEOUT_MS),
        log_format: section.choice("log_format", &[("text", LogFormat::Text), ("json", LogFormat::Json)], LogFormat::Text),
        log_level: section.choice("log_level", &LEVELS, LogLevel::Info),
    };
    check_listeners(section, &server, tenants);
    check_admin_key(section, &server, tenants);
    section.finish();
    server
}

fn check_listeners(section: &mut Section<'_, '_>, server: &Server, tenants: &[Tenant]) {
    let open = tenants.iter().any(|tenant| tenant.access == TenantAccess::Open);
    if open && !is_loopback(server.listen) {
        let message = format!("{} can be reached from other machines, and without tenants everybody is served", server.listen);
        let hint = "listen on 127.0.0.1 or add a [tenant.NAME] with key_sha256";
        section.error(ErrorKind::Conflict, "listen", message, hint);
    }
    // An unreadable digest is an error of its own.
    if server.admin == AdminAccess::Open && !is_loopback(server.admin_listen) && !section.has("admin_key_sha256") {
        let message = format!("{} can be reached from other machines, and there is no admin key", server.admin_listen);
        section.error(ErrorKind::Conflict, "admin_listen", message, "listen on 127.0.0.1 or set admin_key_sha256");
    }
    if overlap(server.listen, server.admin_listen) {
        let message = format!("{} cannot be bound beside listen, {}", server.admin_listen, server.listen);
        section.error(ErrorKind::Conflict, "admin_listen", message, "give it another port");
    }
}

/// A tenant's key must not open the admin listener.
fn check_admin_key(section: &mut Section<'_, '_>, server: &Server, tenants: &[Tenant]) {
    const KEY: &str = "admin_key_sha256";
    let AdminAccess::Key(digest) = &server.admin else { return };
    if *digest == OF_NOTHING {
        let message = "is the SHA-256 of an empty text".to_owned();
        section.error(
            ErrorKind::Impossible,
            KEY,
            message,
            "the variable with the key was empty when it was hashed; hash the key itself",
        );
    }
    for tenant in tenants {
        if matches!(&tenant.access, TenantAccess::Keys(keys) if keys.contains(digest)) {
            let message = format!("is also a key of tenant `{}`", tenant.name);
            section.error(ErrorKind::Conflict, KEY, message, "make another with `millrace keys new`");
        }
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Whether the second of two listeners would find its port taken. Port 0 is a free one each time.
fn overlap(left: SocketAddr, right: SocketAddr) -> bool {
    let (a, b) = (left.ip().to_canonical(), right.ip().to_canonical());
    left.port() == right.port() && left.port() != 0 && (a == b || covers(a, b) || covers(b, a))
}

/// `0.0.0.0` covers every IPv4 address, `[::]` every address.
fn covers(wide: IpAddr, other: IpAddr) -> bool {
    wide.is_unspecified() && (wide.is_ipv6() || other.is_ipv4())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_overlap_as_sockets_do() {
        let overlap = |a: &str, b: &str| overlap(a.parse().unwrap(), b.parse().unwrap());
        assert!(overlap("127.0.0.1:80", "127.0.0.1:80"));
        assert!(overlap("0.0.0.0:80", "127.0.0.1:80"));
        assert!(overlap("127.0.0.1:80", "[::]:80"));
        assert!(overlap("[::ffff:127.0.0.1]:80", "127.0.0.1:80"));
        assert!(!overlap("0.0.0.0:80", "[::1]:80"));
        assert!(!overlap("127.0.0.1:80", "127.0.0.2:80"));
        assert!(!overlap("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!overlap("127.0.0.1:0", "127.0.0.1:0"));
    }
}
