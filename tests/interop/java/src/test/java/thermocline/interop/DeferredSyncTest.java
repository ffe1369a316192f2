package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Wire;

/** Adds that are acknowledged before they are durable, and the force that makes them so. Version 3 only. */
@ExtendWith(SharedCluster.class)
class DeferredSyncTest {
    private final Cluster cluster;

    DeferredSyncTest(Cluster cluster) {
        this.cluster = cluster;
    }

    private static WriteHandle create(BookKeeper client, int ensemble) throws Exception {
        return client.newCreateLedgerOp()
            .withEnsembleSize(ensemble).withWriteQuorumSize(ensemble).withAckQuorumSize(ensemble)
            .withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C)
            .withPassword(Payloads.PASSWORD)
            .withWriteFlags(WriteFlag.DEFERRED_SYNC)
            .execute().get(30, TimeUnit.SECONDS);
    }

    private static void append(WriteHandle writer, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            long next = writer.getLastAddPushed() + 1;
            assertEquals(next, writer.append(Payloads.of(writer.getId(), next)));
        }
    }

    @Test
    void onlyAForceConfirms() throws Exception {
        try (BookKeeper client = cluster.connect(Wire.V3)) {
            WriteHandle writer = create(client, 3);
            append(writer, 10);
            assertEquals(-1, writer.getLastAddConfirmed());
            writer.force().get(30, TimeUnit.SECONDS);
            assertEquals(9, writer.getLastAddConfirmed());
            append(writer, 5);
            writer.force().get(30, TimeUnit.SECONDS);
            writer.close();
            Payloads.check(client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD), 0, 14);
        }
    }

    @Test
    void whatIsForcedIsThereAfterAKill() throws Exception {
        long ledger;
        try (BookKeeper client = cluster.connect(Wire.V3)) {
            WriteHandle writer = create(client, 1);
            append(writer, 50);
            writer.force().get(30, TimeUnit.SECONDS);
            ledger = writer.getId();
            cluster.bookie(writer.getLedgerMetadata().getAllEnsembles().get(0L).get(0)).restart();
        }
        try (BookKeeper client = cluster.connect(Wire.V3)) {
            LedgerHandle recovered = client.openLedger(ledger, DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(49, recovered.getLastAddConfirmed());
            Payloads.check(recovered, 0, 49);
        }
    }
}
