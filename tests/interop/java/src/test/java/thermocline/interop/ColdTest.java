package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.Gateway;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Waiting;
import thermocline.interop.cluster.Wire;

/** A ledger that Java wrote, released by our offloader: Java reads it on, from cold ids, without knowing. */
@ExtendWith(SharedCluster.class)
@EnabledIfSystemProperty(named = "bookies", matches = "thermocline")
class ColdTest {
    private static final int COUNT = 300;
    /** A lease of 6 s, a look at who is left, and a client that asks again. */
    private static final Duration TAKEN_OVER = Duration.ofSeconds(15);
    /** A gateway looks anew at a ledger that it knows after a minute. */
    private static final Duration FORGOTTEN = Duration.ofSeconds(75);

    private final Cluster cluster;

    ColdTest(Cluster cluster) {
        this.cluster = cluster;
    }

    /** Ids lead to the gateways that run before a test counts on it. */
    @BeforeEach
    void start() throws Exception {
        cluster.gateways(2);
    }

    @AfterEach
    void twoGatewaysAgain() throws Exception {
        cluster.gateways(2);
    }

    /** A closed ledger of {@code COUNT} entries. */
    private static LedgerHandle written(BookKeeper client, int writeQuorum, DigestType digest) throws Exception {
        LedgerHandle writer = client.createLedger(3, writeQuorum, 2, digest, Payloads.PASSWORD);
        Payloads.append(writer, COUNT);
        writer.close();
        return writer;
    }

    private static List<BookieId> members(LedgerHandle handle) {
        assertEquals(1, handle.getLedgerMetadata().getAllEnsembles().size());
        return handle.getLedgerMetadata().getAllEnsembles().get(0L);
    }

    private static boolean isCold(LedgerHandle handle) {
        return members(handle).stream().allMatch(id -> id.toString().matches("c\\d+-\\d+\\.cold\\.thermocline:\\d+"));
    }

    private static void checkAll(LedgerHandle reader) throws Exception {
        assertEquals(COUNT - 1, reader.getLastAddConfirmed());
        assertEquals(Payloads.length(COUNT), reader.getLength());
        assertTrue(reader.isClosed());
        Payloads.check(reader, 0, COUNT - 1);
        for (long entry : new long[] {0, 1, 2, 3, 150, 151, COUNT - 1}) {
            Payloads.check(reader, entry, entry);
        }
        assertArrayEquals(Payloads.of(reader.getId(), COUNT - 1), reader.readLastEntry().getEntry());
        assertEquals(COUNT - 1, reader.readLastConfirmed());
        assertThrows(BKException.BKReadException.class, () -> reader.readEntries(COUNT, COUNT));
    }

    static Stream<Arguments> wiresAndDigests() {
        return Arrays.stream(Wire.values())
            .flatMap(wire -> Stream.of(DigestType.CRC32C, DigestType.MAC).map(digest -> Arguments.of(wire, digest)));
    }

    @ParameterizedTest
    @MethodSource("wiresAndDigests")
    void aFreshHandleReadsTheWholeLedger(Wire wire, DigestType digest) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            long ledger = written(client, 2, digest).getId();
            cluster.offloader().release(ledger);
            LedgerHandle recovering = client.openLedger(ledger, digest, Payloads.PASSWORD);
            assertTrue(isCold(recovering), () -> "members " + members(recovering));
            checkAll(recovering);
            LedgerHandle plain = client.openLedgerNoRecovery(ledger, digest, Payloads.PASSWORD);
            checkAll(plain);
            assertThrows(BKException.BKUnauthorizedAccessException.class,
                () -> client.openLedger(ledger, digest, new byte[] {1}));
        }
    }

    /** Such a handle watches its ledger's metadata, and turns to the cold ids when they come. */
    @ParameterizedTest
    @EnumSource
    void aHandleThatWatchesItsLedgerFollowsTheRelease(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            long ledger = written(client, 2, DigestType.CRC32C).getId();
            LedgerHandle reader = client.openLedgerNoRecovery(ledger, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.check(reader, 0, 99);
            cluster.offloader().release(ledger);
            Waiting.until("the handle hears of the release", Duration.ofSeconds(30), () -> isCold(reader));
            checkAll(reader);
        }
    }

    /** Whatever administrators list as a bookie's ledgers, a released one is not among them. */
    @Test
    void administratorsSeeColdIdsAsReadOnlyBookies() throws Exception {
        try (BookKeeper client = cluster.connect(Wire.V3);
                BookKeeperAdmin admin = new BookKeeperAdmin(client, cluster.configuration(Wire.V3))) {
            long ledger = written(client, 2, DigestType.CRC32C).getId();
            cluster.offloader().release(ledger);
            LedgerHandle reader = client.openLedger(ledger, DigestType.CRC32C, Payloads.PASSWORD);
            assertTrue(admin.getReadOnlyBookies().containsAll(members(reader)));
            assertTrue(admin.getAvailableBookies().stream().noneMatch(members(reader)::contains));
        }
    }

    /** The gateway that a reader reads from is killed: the other answers for its ids before long, to the same handle. */
    @ParameterizedTest
    @EnumSource
    void aReaderGoesOnWhenTheGatewayOfItsLedgerDies(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            long ledger = written(client, 2, DigestType.CRC32C).getId();
            cluster.offloader().release(ledger);
            LedgerHandle reader = client.openLedgerNoRecovery(ledger, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.check(reader, 0, 99);
            int port = client.getBookieAddressResolver().resolve(members(reader).get(0)).getPort();
            List<Gateway> owner = cluster.gateways(2).stream().filter(gateway -> gateway.port() == port).toList();
            assertEquals(1, owner.size(), () -> "gateways at port " + port);
            cluster.kill(owner.get(0));
            for (long first = 100; first < COUNT; first += 50) {
                readOn(reader, first, first + 49);
            }
            checkAll(reader);
        }
    }

    /** Reads {@code first..=last}, again while the ledger's ids lead nowhere; whatever is read must be right. */
    private static void readOn(LedgerHandle reader, long first, long last) throws Exception {
        Waiting.until("entries " + first + "..=" + last + " are read", TAKEN_OVER, () -> {
            try {
                Payloads.check(reader, first, last);
                return true;
            } catch (BKException e) {
                assertTrue(passes(e.getCode()), () -> "told " + BKException.getMessage(e.getCode()));
                return false;
            }
        });
    }

    /** Whether {@code code} says that nothing is known, and not that something is gone. */
    private static boolean passes(int code) {
        return switch (code) {
            case BKException.Code.BookieHandleNotAvailableException, BKException.Code.TooManyRequestsException,
                BKException.Code.TimeoutException, BKException.Code.ReadException -> true;
            default -> false;
        };
    }

    /** Nobody opens a deleted ledger; who has it open reads what was there, and then hears that it is gone. */
    @Test
    @Timeout(120)
    void aDeletedLedgerIsGoneForEveryone() throws Exception {
        try (BookKeeper v2 = cluster.connect(Wire.V2); BookKeeper v3 = cluster.connect(Wire.V3)) {
            long ledger = written(v3, 2, DigestType.CRC32C).getId();
            cluster.offloader().release(ledger);
            List<LedgerHandle> readers = List.of(
                v2.openLedgerNoRecovery(ledger, DigestType.CRC32C, Payloads.PASSWORD),
                v3.openLedgerNoRecovery(ledger, DigestType.CRC32C, Payloads.PASSWORD));
            for (LedgerHandle reader : readers) {
                checkAll(reader);
            }
            v3.deleteLedger(ledger);
            for (BookKeeper client : List.of(v2, v3)) {
                assertThrows(BKException.BKNoSuchLedgerExistsOnMetadataServerException.class,
                    () -> client.openLedger(ledger, DigestType.CRC32C, Payloads.PASSWORD));
                assertThrows(BKException.BKNoSuchLedgerExistsOnMetadataServerException.class,
                    () -> client.openLedgerNoRecovery(ledger, DigestType.CRC32C, Payloads.PASSWORD));
            }
            for (LedgerHandle reader : readers) {
                Waiting.until("the deleted ledger is gone", FORGOTTEN, () -> isGone(reader));
            }
        }
    }

    private static boolean isGone(LedgerHandle reader) throws Exception {
        try {
            Payloads.check(reader, 0, 9);
            return false;
        } catch (BKException.BKNoSuchLedgerExistsException e) {
            return true;
        }
    }
}
