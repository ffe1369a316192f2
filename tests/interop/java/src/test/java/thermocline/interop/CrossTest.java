package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.stream.Stream;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.Gateway;
import thermocline.interop.cluster.Role;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Wire;

/** One ledger, BookKeeper's client and ours: what one writes the other reads, recovers and fences. */
@ExtendWith(SharedCluster.class)
@EnabledIfSystemProperty(named = "bookies", matches = "thermocline")
class CrossTest {
    private static final byte[] NO_PASSWORD = {};
    private static final byte[] NOTHING = {};
    private static final int COUNT = 60;

    private final Cluster cluster;
    private final Gateway gateway;

    CrossTest(Cluster cluster) throws Exception {
        this.cluster = cluster;
        gateway = cluster.gateway();
    }

    /** Entries {@code first..end} in the form that the program's commands read and write: each after its length. */
    private static byte[] framed(long ledger, int first, int end) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        for (int entry = first; entry < end; entry++) {
            byte[] payload = Payloads.of(ledger, entry);
            out.writeInt(payload.length);
            out.write(payload);
        }
        return bytes.toByteArray();
    }

    private static String name(DigestType digest) {
        return switch (digest) {
            case CRC32 -> "crc32";
            case CRC32C -> "crc32c";
            case MAC -> "hmac";
            case DUMMY -> "dummy";
        };
    }

    private long create(DigestType digest) throws Exception {
        byte[] id = gateway.run(NOTHING, "ledger", "create", "--digest", name(digest)).good();
        return Long.parseLong(new String(id, StandardCharsets.UTF_8).trim());
    }

    private Role.Result append(long ledger, int first, int end) throws Exception {
        return gateway.run(framed(ledger, first, end),
            "ledger", "write", Long.toString(ledger), "--keep-open", "--framing", "length");
    }

    private byte[] read(long ledger) throws Exception {
        return gateway.run(NOTHING, "ledger", "read", Long.toString(ledger), "--framing", "length").good();
    }

    private Role.Result close(long ledger) throws Exception {
        return gateway.run(NOTHING, "ledger", "close", Long.toString(ledger));
    }

    static Stream<Arguments> wiresAndDigests() {
        return ReadWriteTest.wiresAndDigests();
    }

    @ParameterizedTest
    @MethodSource("wiresAndDigests")
    void oursReadsWhatJavaWrote(Wire wire, DigestType digest) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 2, 2, digest, NO_PASSWORD);
            Payloads.append(writer, COUNT);
            writer.close();
            assertArrayEquals(framed(writer.getId(), 0, COUNT), read(writer.getId()));
        }
    }

    @ParameterizedTest
    @MethodSource("wiresAndDigests")
    void javaReadsWhatOursWrote(Wire wire, DigestType digest) throws Exception {
        long ledger = create(digest);
        append(ledger, 0, COUNT).good();
        close(ledger).good();
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle reader = client.openLedger(ledger, digest, NO_PASSWORD);
            assertEquals(COUNT - 1, reader.getLastAddConfirmed());
            assertEquals(Payloads.length(COUNT), reader.getLength());
            Payloads.check(reader, 0, COUNT - 1);
        }
    }

    @ParameterizedTest
    @EnumSource
    void oursRecoversWhatJavaWrites(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, NO_PASSWORD);
            Payloads.append(writer, COUNT);
            close(writer.getId()).good();
            assertArrayEquals(framed(writer.getId(), 0, COUNT), read(writer.getId()));
            assertThrows(BKException.BKLedgerFencedException.class, () -> Payloads.append(writer, 1));
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, NO_PASSWORD);
            assertEquals(COUNT - 1, reader.getLastAddConfirmed());
        }
    }

    @ParameterizedTest
    @EnumSource
    void javaRecoversWhatOursWrites(Wire wire) throws Exception {
        long ledger = create(DigestType.CRC32C);
        append(ledger, 0, COUNT).good();
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle recovered = client.openLedger(ledger, DigestType.CRC32C, NO_PASSWORD);
            assertEquals(COUNT - 1, recovered.getLastAddConfirmed());
            Payloads.check(recovered, 0, COUNT - 1);
            assertNotEquals(0, append(ledger, COUNT, COUNT + 1).code(), "the old writer goes on");
            assertArrayEquals(framed(ledger, 0, COUNT), read(ledger));
        }
    }

    /** A ledger that ours is still writing is followed by Java without disturbing it. */
    @ParameterizedTest
    @EnumSource
    void javaFollowsWhatOursWrites(Wire wire) throws Exception {
        long ledger = create(DigestType.CRC32C);
        append(ledger, 0, 20).good();
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle reader = client.openLedgerNoRecovery(ledger, DigestType.CRC32C, NO_PASSWORD);
            append(ledger, 20, 40).good();
            // Every entry of the second part tells at least that the first was acknowledged.
            long later = reader.readLastConfirmed();
            assertTrue(later >= 19 && later < 40, "confirmed " + later);
            assertFalse(reader.isClosed());
            Payloads.check(reader, 0, later);
        }
        close(ledger).good();
    }
}
