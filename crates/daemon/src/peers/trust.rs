//! Whom TLS takes for known: nodes by their raw public keys, and nobody else.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};

use super::key::PublicKey;
use super::known_nodes::KnownNodes;

/// The node that is connected to has this key and no other.
#[derive(Debug)]
pub struct Expected {
    pub key: PublicKey,
    pub provider: Arc<CryptoProvider>,
}

/// Who connects is a node that is known.
pub struct Anyone {
    pub known: Arc<KnownNodes>,
    pub provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Anyone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Anyone")
    }
}

const UNKNOWN: rustls::Error =
    rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure);

fn verify(
    message: &[u8],
    key: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    provider: &CryptoProvider,
) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    verify_tls13_signature_with_raw_key(message, &key, signed, &provider.signature_verification_algorithms)
}

/// TLS 1.2 is not spoken.
fn too_old() -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
    Err(rustls::Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered))
}

/// What is the same on both sides: raw keys alone, by Ed25519 and TLS 1.3.
macro_rules! raw_keys_alone {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            too_old()
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            verify(message, key, signed, &self.provider)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match PublicKey::from_der(key) == Some(self.key) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(UNKNOWN),
        }
    }

    raw_keys_alone!();
}

impl ClientCertVerifier for Anyone {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        match PublicKey::from_der(key).and_then(|key| self.known.with_key(&key)) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(UNKNOWN),
        }
    }

    raw_keys_alone!();
}
