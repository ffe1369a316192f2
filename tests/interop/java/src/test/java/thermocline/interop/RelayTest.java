package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.net.BookieId;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.Waiting;
import thermocline.interop.cluster.Wire;

/**
 * Handles that were opened with recovery do not watch their ledger's metadata: after the release they go on asking the bookies that
 * had it. Those have dropped it, and pass such reads on to its cold ids.
 */
@EnabledIfSystemProperty(named = "bookies", matches = "thermocline")
class RelayTest {
    private static final int BOOKIES = 3;
    private static final int COUNT = 60;
    private static final Duration DROPPED = Duration.ofSeconds(60);

    @Test
    @Timeout(180)
    void handlesOpenedBeforeTheReleaseReadOn() throws Exception {
        // Segments that a few ledgers fill, looked through all the time.
        try (Cluster cluster = new Cluster(BOOKIES, "thermocline", "bookie.segment_bytes=1MiB", "bookie.collect_interval=1s");
                BookKeeper v2 = cluster.connect(Wire.V2); BookKeeper v3 = cluster.connect(Wire.V3);
                BookKeeperAdmin admin = new BookKeeperAdmin(v3, cluster.configuration(Wire.V3))) {
            cluster.gateways(2);
            long ledger = written(v3).getId();
            List<LedgerHandle> readers = new ArrayList<>();
            for (BookKeeper client : List.of(v2, v3)) {
                LedgerHandle reader = client.openLedger(ledger, DigestType.CRC32C, Payloads.PASSWORD);
                Payloads.check(reader, 0, 9);
                readers.add(reader);
            }
            List<BookieId> members = readers.get(0).getLedgerMetadata().getAllEnsembles().get(0L);
            cluster.offloader().release(ledger);
            fill(v3);
            for (BookieId member : members) {
                Waiting.until(member + " drops the ledger", DROPPED, () -> !has(admin, member, ledger));
            }
            for (LedgerHandle reader : readers) {
                assertEquals(members, reader.getLedgerMetadata().getAllEnsembles().get(0L), "it has heard of the release");
                Payloads.check(reader, 0, COUNT - 1);
                for (long entry : new long[] {0, 1, 2, COUNT - 1}) {
                    Payloads.check(reader, entry, entry);
                }
            }
        }
    }

    private static LedgerHandle written(BookKeeper client) throws Exception {
        LedgerHandle writer = client.createLedger(3, 2, 2, DigestType.CRC32C, Payloads.PASSWORD);
        Payloads.append(writer, COUNT);
        writer.close();
        return writer;
    }

    /** More than a segment, on every bookie, so that the one with the ledger is sealed. */
    private static void fill(BookKeeper client) throws Exception {
        LedgerHandle writer = client.createLedger(BOOKIES, BOOKIES, 2, DigestType.CRC32C, Payloads.PASSWORD);
        for (int entry = 0; entry < 40; entry++) {
            writer.addEntry(Payloads.of(writer.getId(), entry, 100_000));
        }
        writer.close();
    }

    /** Whether the bookie itself has entries of the ledger. */
    private static boolean has(BookKeeperAdmin admin, BookieId bookie, long ledger) throws Exception {
        try {
            return admin.asyncGetListOfEntriesOfLedger(bookie, ledger).get(30, TimeUnit.SECONDS)
                .getTotalNumOfAvailableEntries() > 0;
        } catch (ExecutionException e) {
            return false;
        }
    }
}
