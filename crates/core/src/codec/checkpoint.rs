//! The checkpoint: acked positions of the durable subscriptions, kept in an annotation of the Lease (D.5).
