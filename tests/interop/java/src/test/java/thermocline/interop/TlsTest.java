package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.tls.TLSContextFactory;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import thermocline.interop.cluster.Certificates;
import thermocline.interop.cluster.GuardedBookie;
import thermocline.interop.cluster.Wire;

/** START_TLS, certificates of both sides, and tokens. The plug-in is Thermocline's, so there is no control for it. */
@EnabledIfSystemProperty(named = "bookies", matches = "thermocline")
class TlsTest {
    private static GuardedBookie strict;
    private static GuardedBookie lenient;

    @BeforeAll
    static void start() throws Exception {
        strict = new GuardedBookie("--tls", "required", "--client-ca", "CA", "--tokens", "TOKENS");
        lenient = new GuardedBookie("--tls", "offered");
    }

    @AfterAll
    static void stop() throws Exception {
        if (strict != null) {
            strict.close();
        }
        if (lenient != null) {
            lenient.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoHasCertificateAndTokenWritesAndReads(Wire wire) throws Exception {
        writeAndRead(withToken(withTls(strict, wire, true), GuardedBookie.TOKEN));
        assertTrue(!strict.said().contains(GuardedBookie.TOKEN), "tokens are in no log");
    }

    @ParameterizedTest
    @EnumSource
    void offeredTlsServesBothKindsOfClients(Wire wire) throws Exception {
        writeAndRead(withTls(lenient, wire, false));
        writeAndRead(soon(lenient.configuration(wire)));
        // A token is shown to whoever asks nobody for one, as with BookKeeper's bookies.
        writeAndRead(withToken(withTls(lenient, wire, false), GuardedBookie.TOKEN));
    }

    @ParameterizedTest
    @EnumSource
    void aWrongTokenWritesNothing(Wire wire) throws Exception {
        refused(withToken(withTls(strict, wire, true), "the token of somebody else"));
    }

    @ParameterizedTest
    @EnumSource
    void withoutATokenNothingIsWritten(Wire wire) throws Exception {
        refused(withTls(strict, wire, true));
    }

    @ParameterizedTest
    @EnumSource
    void withoutACertificateNothingIsWritten(Wire wire) throws Exception {
        refused(withToken(withTls(strict, wire, false), GuardedBookie.TOKEN));
    }

    @ParameterizedTest
    @EnumSource
    void inClearNothingIsWritten(Wire wire) throws Exception {
        refused(soon(strict.configuration(wire)));
        refused(withToken(soon(strict.configuration(wire)), GuardedBookie.TOKEN));
    }

    @ParameterizedTest
    @EnumSource
    void aServerOfAnotherAuthorityIsNotSpokenTo(Wire wire) throws Exception {
        ClientConfiguration configuration = withTls(strict, wire, true);
        configuration.setTLSTrustStore(lenient.certificates().authority().toString());
        refused(withToken(configuration, GuardedBookie.TOKEN));
    }

    private static ClientConfiguration withTls(GuardedBookie bookie, Wire wire, boolean certificate) {
        ClientConfiguration configuration = soon(bookie.configuration(wire));
        Certificates certificates = bookie.certificates();
        configuration.setTLSProviderFactoryClass(TLSContextFactory.class.getName());
        configuration.setTLSProvider("JDK");
        configuration.setTLSTrustStoreType("PEM");
        configuration.setTLSTrustStore(certificates.authority().toString());
        configuration.setHostnameVerificationEnabled(true);
        if (certificate) {
            configuration.setTLSClientAuthentication(true);
            configuration.setTLSKeyStoreType("PEM");
            configuration.setTLSKeyStore(path(certificates.key("client")));
            configuration.setTLSCertificatePath(path(certificates.certificate("client")));
        }
        return configuration;
    }

    private static String path(Path file) {
        return file.toString();
    }

    private static ClientConfiguration withToken(ClientConfiguration configuration, String token) {
        configuration.setClientAuthProviderFactoryClass(TokenAuth.class.getName());
        configuration.setProperty(TokenAuth.TOKEN, token);
        return configuration;
    }

    /** Who is refused should hear of it soon. */
    private static ClientConfiguration soon(ClientConfiguration configuration) {
        configuration.setAddEntryTimeout(3);
        configuration.setReadEntryTimeout(3);
        return configuration;
    }

    private static void writeAndRead(ClientConfiguration configuration) throws Exception {
        try (BookKeeper client = new BookKeeper(configuration)) {
            LedgerHandle writer = client.createLedger(1, 1, 1, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 30);
            writer.addEntry(Payloads.of(writer.getId(), 30, 1 << 20));
            // As after a crash: the ledger is fenced and its end is found.
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(30, reader.getLastAddConfirmed());
            Payloads.check(reader, 0, 29);
            reader.close();
        }
    }

    private static void refused(ClientConfiguration configuration) throws Exception {
        try (BookKeeper client = new BookKeeper(configuration)) {
            LedgerHandle writer = client.createLedger(1, 1, 1, DigestType.CRC32C, Payloads.PASSWORD);
            assertThrows(BKException.class, () -> writer.addEntry(new byte[10]));
        }
    }
}
